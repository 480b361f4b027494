# %% [markdown]
# # 07 · Train a head
#
# **You train an EAGLE head of your own in half a minute, watch it learn, and find out what separates it from one that pays.**
#
# {{badge}} · ⏱ 25 minutes · ●●○ medium · after lesson 06

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import Lab, open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# ## What is trained, and what is not

# %%
from labkit.lab.quiz import ask

ask("07-frozen")

# %% [markdown]
# `convert` adds a fresh head to any target: shaped like one of its layers, using the target's own rows to read and to say words.

# %% tags=["nbval-check-output"]
from labkit.training.eagle import convert

fresh = convert(lab.model, "eagle31", draft_vocab_size=256)
ours = sum(w.numel() for w in fresh.parameters() if w.requires_grad)
theirs = sum(w.numel() for w in lab.model.parameters())
print(f"the head: {ours:,} numbers to train")
print(f"the target: {theirs:,} numbers, which stay as they are")

# %% [markdown]
# ## Step 1: the target writes the text
#
# A head need not know what is true, or well written. It must know what *this target* is going to say. So the target writes the training text itself: **self-generated data**.
#
# In half a minute nobody learns a language. We pick one kind of question instead.

# %% tags=["nbval-check-output"]
import tempfile
from pathlib import Path

from labkit.training.data import read_rows
from labkit.training.selfgen import SelfgenSettings, answer

names = """France Spain Italy Greece Norway Sweden Poland Austria Hungary Ireland Japan China India
Nepal Iran Iraq Egypt Kenya Ghana Senegal Brazil Peru Chile Mexico Canada Cuba"""
folder = Path(tempfile.mkdtemp())
short = SelfgenSettings(batch_rows=26, reply_tokens=16)
data = folder / "capitals.jsonl"
asked = [f"What is the capital of {place}?" for place in names.split()]
answer(lab.model, lab.tokenizer, asked, out=data, settings=short)
rows = read_rows(data, vocab_size=lab.target.vocab_size)
print(*(lab.text(row.reply) for row in rows[:4]), sep="\n")

# %% [markdown]
# ## Step 2: keep the target's states
#
# The head reads the target's states, and the target does not change. So its states are computed once and kept on disk; training then never runs the target again.

# %% tags=["nbval-check-output"]
from labkit.training.features import cache_features

needs = (*fresh.config.needs, "final")
cache_features(lab.model, rows, needs=needs, folder=folder / "states")
size = sum(file.stat().st_size for file in (folder / "states").glob("*.npy"))
tokens = sum(map(len, rows))
print(f"{tokens} tokens, {len(needs)} states each: {size / tokens:,.0f} bytes per token")

# %% [markdown]
# The fourth state, `final`, is not for the head. It gives the right answers: multiplied with the output rows it is the target's whole distribution over the next word. The head learns from that, not only from the one word that was written.
#
# ## Step 3: practise on your own states

# %%
ask("07-own-states")

# %% [markdown]
# EAGLE-3 calls the remedy **training-time test**: in training, the head drafts several steps from *every* place of the text at once, as it will later. The tokens stay those of the text; the states are its own from the second step on.
#
# ```
# text      x0 x1 x2 x3 x4 x5          f: the target's states; a, b: the head's own
#
# column        0         1         2         3
# step 0    (f0,x1)   (f1,x2)   (f2,x3)   (f3,x4)      guesses  x2  x3  x4  x5
# step 1    (a0,x2)   (a1,x3)   (a2,x4)                guesses  x3  x4  x5
# step 2    (b0,x3)   (b1,x4)                          guesses  x4  x5
# ```
#
# Column 1 in step 2 stands for a chain that began at `(f1,x2)` and guessed right twice. It has seen the true pairs of columns 0 and 1, and its own two. It must *not* see what other columns guessed. So the mask looks like this; each row is one column's query:

# %% tags=["nbval-check-output"]
from labkit.training.unrolled import step_mask

for step in range(3):
    print(f"step {step}:  keys of step 0" + "".join(f" | step {s}" for s in range(1, step + 1)))
    for row in step_mask(4, step, first=0, device="cpu"):
        parts = row.split([4, *(4 - s for s in range(1, step + 1))])
        print("         ", " | ".join(" ".join("■" if x else "·" for x in p) for p in parts))

# %% [markdown]
# ## Exercise: read the drawing
#
# ●●○ · 5 minutes
#
# For column c in step s, return three numbers: the token that it reads (1 for x1), the token that it guesses, and how many pairs it sees, its own included.

# %%
from labkit.lab import checks


def unrolled(c, s):
    raise NotImplementedError


checks.unrolled(unrolled)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Column 1 in step 2 reads x4 and guesses x5. Count the ■ in its row of the mask: four.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def unrolled(c, s):
#     return c + 1 + s, c + 2 + s, c + 1 + s
# ```
#
# </details>
#
# ## Step 4: train
#
# One update after the other: draft everywhere, compare with the target's distribution, move the head's weights a little. A tenth of the rows is **held out**: never trained on, only measured. This takes about half a minute.

# %% tags=["nbval-ignore-output"]
from labkit.lab.watch import Watch
from labkit.training.eagle import recipe_with, train_eagle

recipe = recipe_with(
    "eagle31", draft_vocab_size=256, held_out=0.1, learning_rate=2e-3, seconds_between_checkpoints=5
)
watch = Watch()
report = train_eagle(
    lab.model, "eagle31", data=data, features=folder / "states", out=folder / "head",
    recipe=recipe, steps=48, progress=watch.progress, watch=watch.measured,
)  # fmt: skip

# %% [markdown]
# Without any drafter a round gives 1 token. The curve rises within a few passes over the text.
#
# ## Step 5: let it draft
#
# New questions, of places that it was never asked about. The text is written once; both heads rehearse on it: ours, and the one that comes with the lab.

# %% tags=["nbval-check-output"]
new = [f"What is the capital of {place}?" for place in ("Russia", "Turkey", "Vietnam")]
texts = [lab.record(question, method="ar", max_new_tokens=16) for question in new]
print(*(text.text for text in texts), sep="\n")

# %% tags=["nbval-ignore-output"]
from labkit.lab.rehearse import rehearse
from labkit.metrics import acceptance

heads = {"ours": Lab(lab.loaded, head=str(folder / "head")), "the lab's": lab}
for name, owner in heads.items():
    n = acceptance(*[rehearse(owner, t, method="eagle31", draft_length=5) for t in texts])
    print(f"{name:10} {n.mean_accepted_length:.2f} tokens per round in {n.rounds} rounds")

# %% [markdown]
# For real, round by round. The passages below the pictures point at what your training did:

# %% tags=["nbval-ignore-output"]
from labkit.viz import Note, Stepper

notes = [
    Note("The first guess reads true states of the target.", "ribbon", phase="draft"),
    Note("Later guesses read the head's own: step 3 trained for that.", "ribbon", phase="draft"),
    Note("What it guessed wrongly is forgotten, its own states too.", "slots", phase="forget"),
]
run = heads["ours"].record(
    new[0], method="eagle31", draft_length=5, max_new_tokens=16, detail="full"
)
Stepper(run, compare=texts[0], notes=notes)

# %% [markdown]
# And on another subject?

# %%
ask("07-elsewhere")

# %% tags=["nbval-ignore-output"]
others = [
    lab.record(question, method="ar", max_new_tokens=24)
    for question in ("Why do cats purr?", "Name three colours of the rainbow.")
]
for name, owner in heads.items():
    n = acceptance(*[rehearse(owner, t, method="eagle31", draft_length=5) for t in others])
    print(f"{name:10} {n.mean_accepted_length:.2f} tokens per round in {n.rounds} rounds")
ours = heads["ours"].record("Why do cats purr?", method="eagle31", max_new_tokens=24)
print("same text:", ours.tokens == others[0].tokens)

# %% [markdown]
# A head knows what it practised. What does it take to know more? Here are the notes that lie beside the lab's own heads, written when they were trained:

# %% tags=["nbval-check-output"]
import json

from labkit.lab.heads import shipped

folders = {kind: shipped(lab.model, kind=kind) for kind in ("eagle1", "eagle3", "eagle31")}
notes = {kind: json.loads((f / "provenance.json").read_text()) for kind, f in folders.items()}
for kind, note in notes.items():
    words = note["data"]["reply_tokens_trained_on"]
    told = f"{words:,} reply tokens, {note['epochs']:.1f} passes, {note['minutes']:.0f} minutes"
    print(f"{kind:8} {told}; draft words cover {note['draft_vocabulary']['coverage']:.1%}")

# %%
from labkit.viz.courses import course

course(
    {
        kind: {0: 1.0} | {p["tokens"]: p["mean_accepted_length"] for p in note["curve"]}
        for kind, note in notes.items()
    },
    quantity="tokens per round on held-out rows",
    along="tokens seen in training",
)

# %% [markdown]
# Do the curves still rise where they end? The heads of the papers saw some hundred times more text (EAGLE-3: about 530 000 conversations), and were trained on several GPUs. For a better head, nothing in the recipe changes but text and time.
#
# ## Do it seriously
#
# On the command line, the same three steps. All of them go on where they stopped when they are interrupted:
#
# ```
# labkit selfgen --tokens 1000000 --out text.jsonl
# labkit train eagle31 --data text.jsonl --minutes 60 --out my-head
# labkit generate --method eagle31 --head my-head --prompt "Why do cats purr?"
# ```
#
# On several GPUs: `accelerate launch -m labkit train eagle31 ...`, unchanged. And when the head is good, take it along: `labkit export --head my-head --format vllm --out for-vllm`.
#
# ## Summary
#
# - A head learns to foresee **its target**, on text that the target wrote itself. The target stays frozen, to the bit.
# - States are computed once and kept; the right answers are the target's whole distributions.
# - The **training-time test** lets the head practise on its own states, one column for every place where a chain could begin.
# - A head is good at what it practised. Elsewhere the text is the same, and acceptance falls.
# - What limits a small head is text and time: look at the curve, not at a promise.
#
# ## What's next
#
# [08 attention drift](08_attention_drift.ipynb): what happens beyond the steps that were practised.
