# %% [markdown]
# # 00 · Start here
#
# **In ten lines of code you watch a real language model write with a helper, and you see who wrote each token.**
#
# {{badge}} · ⏱ 10 minutes · ●○○ easy · you need nothing to begin

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% [markdown]
# ## How these lessons work
#
# - Run a cell with **Shift + Enter**, from top to bottom.
# - Questions come *before* the answer. Guess first: a wrong guess that you notice teaches more than a right sentence that you read.
# - Each lesson has one exercise. Its check says what is probably wrong. Hints and solutions are folded away.
#
# ## The model
#
# A language model writes text in pieces. Such a piece is a **token**: a word, a part of a word, or a sign.
# The model whose text we want is called the **target**. Ours is SmolLM2-135M-Instruct: small enough for a laptop, and real.
# Every number in these lessons is computed by the models in front of you.

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# `float32` means numbers of 32 bits. With them, equal texts really come out equal. Lesson 03 shows what happens with fewer bits.
#
# ## Alone
#
# First the target writes alone, one token after the other. This is called *autoregressive* decoding (`"ar"`).
# For every token, all layers of the model are computed once: one **forward**.

# %% tags=["nbval-check-output"]
prompt = "My friend has just moved to a new town and feels lonely. What would you say to her?"
plain = lab.record(prompt, method="ar", max_new_tokens=40)
print(plain.text)
print("tokens:", len(plain.tokens), "· forwards of the target:", len(plain.rounds))

# %% [markdown]
# ## With a helper
#
# Now a much smaller model, the **drafter**, guesses the next 4 tokens, and the target checks all 4 guesses in one forward.
# That is *speculative decoding*. What do you expect?

# %%
from labkit.lab.quiz import ask

ask("00-text")

# %% tags=["nbval-check-output"]
trace = lab.record(prompt, method="draft", draft_length=4, max_new_tokens=40, detail="full")
print(trace.text)
print("the same tokens:", trace.tokens == plain.tokens)
print("forwards of the target:", len(plain.rounds), "alone,", len(trace.rounds), "with a drafter")

# %% [markdown]
# ## Who wrote each token?
#
# Draft, check, add to the text: that is one **round**. In each round some guesses stay, and the target adds one token of its own.

# %% tags=["nbval-check-output"]
from collections import Counter

writers = Counter(trace.sources)
print("written by the drafter:", writers["draft"])
print("written by the target: ", writers["target"])

# %%
from labkit.viz import ribbon

ribbon(trace)

# %% [markdown]
# The first boxes are the end of the prompt, with the marks that tell the model whose turn it is in a chat. Then follows the text. A small number begins a round.
#
# | sign | the token was … |
# |:---:|---|
# | ✓ | guessed, and **accepted**: the target agrees |
# | ✗ | guessed, and **rejected**: the target would have written something else |
# | ↻ | written by the target in place of a rejected guess (**resampled**) |
# | ★ | written by the target after all guesses were accepted (**bonus**) |
# | – | guessed, but not used: it followed a rejected token |
#
# A token that the drafter wrote is no second choice: the target would have written the very same one. The text is the target's, every token of it.
#
# ## Step through it
#
# The same run, moment by moment. Click into the box, then use the keyboard:
#
# | key | |
# |:---:|---|
# | → ← | one step on, one step back |
# | Home, End | to the beginning, to the end |
# | Space | play and pause |
#
# The buttons and the slider do the same. The passages below the pictures follow you: each outlines the part that it speaks of.

# %% tags=["nbval-ignore-output"]
from labkit.viz import Note, Stepper

notes = [
    Note("The drafter has written its guesses. Nobody has judged them.", "ribbon", phase="draft"),
    Note("One forward: the target reads them all at once.", "slots", phase="score"),
    Note(
        "Each guess in turn is compared with what the target says there.",
        "inspector",
        phase="verify",
    ),
    Note("What stays joins the text, with one of the target's own.", "ribbon", phase="commit"),
    Note("Rejected guesses leave its memory (lesson 04).", "slots", phase="forget"),
]
Stepper(trace, compare=plain, notes=notes)

# %% [markdown]
# Words in this lesson can point, too. Move the mouse over them while the stepper is in sight: [the text](#labkit-ribbon), [the checks](#labkit-inspector), [the memory](#labkit-slots), [the time](#labkit-timeline).
#
# ## Exercise: read a round
#
# ●○○ · 3 minutes
#
# Go to **round 2** in the stepper. How many tokens did the drafter propose? How many of them were accepted? Which token did the target add?
# Replace the three `None`, and run the cell.

# %%
from labkit.lab import checks

drafted = None  # a number
accepted = None  # a number
own = None  # a text, such as " the"

checks.read_round(trace, number=2, drafted=drafted, accepted=accepted, own=own)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Count only what the *drafter* proposed: the token before the guesses is text already, and the one with ↻ or ★ is the target's.
#
# </details>
# <details><summary>Solution</summary>
#
# The same can be read from the recorded run:
#
# ```python
# second = trace.rounds[1]
# drafted = len(second.drafted.tokens) - 1
# accepted = second.accepted
# own = trace.token_text(second.committed.tokens[-1])
# print(drafted, accepted, repr(own))
# ```
#
# </details>
#
# ## Was it faster?
#
# Fewer forwards, but the drafter takes time as well. So let them race: the target alone against the target with its drafter. Who wins on your machine?

# %% tags=["nbval-ignore-output"]
from labkit.lab.race import Race

race = Race(lab, prompt, methods=("draft",), draft_length=4, max_new_tokens=40)
race.run()
race

# %% [markdown]
# On some machines and some texts the drafter costs more than it saves, and the race says so. Why, and when, is the subject of lesson 01.
#
# ## Summary
#
# - The **drafter** guesses several tokens, the **target** checks them all in one **forward**.
# - A guess stays only if it is what the target would have written. So the text does not change; only the number of forwards does.
# - Every **round** adds at least one token: the target's own.
#
# ## What's next
#
# | lesson | question |
# |---|---|
# | [01 why decoding is slow](01_why_decoding_is_slow.ipynb) | Why can checking four tokens be cheaper than writing four? |
# | [02 draft and verify](02_draft_and_verify.ipynb) | How exactly does the target decide, also when it rolls dice? |
# | [03 lossless](03_lossless.ipynb) | How do we *know* that nothing is lost? |
# | [04 KV slots and rollback](04_kv_slots_and_rollback.ipynb) | What happens to the memory of rejected tokens? |
# | [05 trees](05_trees.ipynb) | What if the drafter may guess twice? |
# | [06 the EAGLE family](06_the_eagle_family.ipynb) | What does the target know that its text does not say? |
# | [07 train a head](07_train_a_head.ipynb) | Where does a drafter come from? |
# | [08 attention drift](08_attention_drift.ipynb) | What do the two norms of EAGLE-3.1 mend? |
# | [09 multi-token prediction](09_multi_token_prediction.ipynb) | Can a model guess several tokens at once? |
# | [12 playground](12_playground.ipynb) | What happens if *you* draft, or break the rules? |
#
# Before you go: change `prompt` above to something of your own and run the cells again. Try a list, a poem, some code. Where does the drafter do well?
