# %% [markdown]
# # 06 · The EAGLE family
#
# **You look inside the head: what it reads, which words it can say, what each version added, and what happens when it is run wrongly and nobody notices.**
#
# {{badge}} · ⏱ 30 minutes · ●●○ medium · after lesson 05

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")
heads = {kind: lab.drafter(kind).head for kind in ("eagle1", "eagle3", "eagle31")}

# %% [markdown]
# ## What the target throws away
#
# The draft model of lesson 02 read the text, as everybody does: tokens. But the target knows more than the text.
# While it reads, it computes a **state** for every token, a row of numbers, and changes it from layer to layer. The last state becomes scores for all words, one word is chosen, and the state is thrown away.
#
# A state holds much of what the target expects to come. **EAGLE** (Li et al. 2024) drafts from it: with a **head**, a single layer that reads the target's own states. There is no second model to load, and much of the thinking is done already.
#
# There is one thing, though, that a state cannot know.

# %%
from labkit.lab.quiz import ask

ask("06-pair")

# %% [markdown]
# So the head reads **pairs**: a token, and the state of the token *before* it.
#
# ```
# text      x0     x1     x2     x3        x3 is pending: the target has not read it
# states    f0     f1     f2               f2: what the target computed at x2
#
# pairs          (f0,x1)(f1,x2)(f2,x3)     what was expected, and what was chosen
# guesses           x2     x3     x4       the token after the pair's own
# then                         (g3,x4)     no f3 yet: the head's own g3 stands in
# guesses                         x5
# ```
#
# With the words of a real run:

# %% tags=["nbval-check-output"]
run = lab.record("Name three colours of the rainbow.", method="ar", max_new_tokens=8)
ids = [*run.prompt, *run.tokens]
print("state after    token          guess")
for t in range(len(run.prompt), len(ids) - 1):
    before, here, after = (repr(lab.token_text(i)) for i in ids[t - 1 : t + 2])
    print(f"{before:14} {here:14} {after}")

# %% [markdown]
# ## Exercise: the pairs
#
# ●●○ · 5 minutes
#
# A text has n tokens, numbered 0 to n − 1. The target has read all but the last. List what the head reads: for every pair the number of the state, the number of the token, and the number of the token that it guesses.

# %%
from labkit.lab import checks


def pairs(n):
    raise NotImplementedError


checks.pairs(pairs)

# %% [markdown]
# <details><summary>Hint</summary>
#
# For n = 4 the drawing above shows three pairs. The first one is `(0, 1, 2)`.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def pairs(n):
#     return [(t - 1, t, t + 1) for t in range(1, n)]
# ```
#
# </details>
#
# ## A family of four
#
# | | it reads | it learns | it drafts |
# |---|---|---|---|
# | **EAGLE-1** (2024) | the target's last state | to imitate the target's next *state*, and its next word | a chain or a static tree |
# | **EAGLE-2** (2024) | the same: it *is* the EAGLE-1 head | nothing new | a dynamic tree (lesson 05) |
# | **EAGLE-3** (2025) | three states, from an early, a middle and a late layer, **fused** into one | the next word alone, also after *its own* guesses, several steps deep; over fewer words | the same |
# | **EAGLE-3.1** (2026) | the same three, each **normed** by itself first | the same | the same, and feeds its own state back normed (lesson 08) |
#
# EAGLE-1 had to make its own state look like the target's. EAGLE-3 dropped that duty: its state may be whatever helps to guess. The price is that it must *practise* on its own states while it is trained, since nothing else resembles them.
#
# The heads for our target, trained on the same text. (*Weights per guess* is what must be read for one guess, the scores for all words it knows included.)

# %% tags=["nbval-check-output"]
for kind, head in heads.items():
    reads, words = " + ".join(head.config.needs), head.config.draft_vocab_size
    weights = sum(w.numel() for n, w in head.named_parameters() if "embed_tokens" not in n)
    print(f"{kind:8} reads {reads:14} · {words:6,} words · {weights:,} weights per guess")
layers, width = lab.model.config.num_hidden_layers, lab.model.config.hidden_size
weights = sum(w.numel() for w in lab.model.parameters())
print(f"target   {layers} layers, states of {width} numbers · {weights:,} weights per token")

# %% [markdown]
# `h2` is the state after 2 layers; `final` the last one, after the final norm. Fusing is one matrix: it takes the three states side by side and makes one of them.

# %%
from labkit.heads.eagle import EagleHead
from labkit.lab.show import show

show(EagleHead.fuse)

# %% [markdown]
# Heads travel as files, in half a dozen formats. `labkit inspect` reads such a file and says what it is, how it decided, and what is missing or suspicious. The same from Python:

# %% tags=["nbval-check-output"]
from labkit.heads.checkpoints import inspect_checkpoint, report_text
from labkit.lab.heads import shipped

print(report_text(inspect_checkpoint(shipped(lab.model, kind="eagle3"))))

# %% [markdown]
# ## Who guesses best?
#
# First some text. It is the same whoever drafts, so it is written once, and every head rehearses on it (lesson 05).

# %% tags=["nbval-check-output"]
prompts = [
    "Why do cats purr?",
    "Write a Python function that reverses a list.",
    "A shop sells pens at 3 for 2 euros. What do 12 pens cost?",
    "Write a short poem about autumn leaves.",
    "Give three tips for a first job interview.",
]
texts = [lab.record(prompt, method="eagle3", max_new_tokens=28) for prompt in prompts]
print("tokens written:", sum(len(text.tokens) for text in texts))
print("first one:", repr(texts[0].text[:90]))

# %% [markdown]
# Every member drafts 4 deep. Trees may hold 7 nodes. Which step up the ladder will bring the most? Write your order down before you run the cell.

# %% tags=["nbval-check-output"]
from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import Chain, DynamicTree
from labkit.lab.rehearse import rehearse
from labkit.metrics import acceptance, acceptance_by_depth

runs = {}
for kind, name in {"eagle1": "EAGLE-1", "eagle3": "EAGLE-3", "eagle31": "EAGLE-3.1"}.items():
    for shape in (Chain(), DynamicTree(top_k=3, nodes=7)):
        drafter = eagle_drafter(heads[kind], shape=shape)
        member = f"{name} chain" if shape == Chain() else f"{name} tree"
        runs[member] = [rehearse(lab, text, drafter=drafter, draft_length=4) for text in texts]
        n = acceptance(*runs[member])
        told = f"{n.mean_accepted_length:.2f} ± {n.standard_error:.2f} tokens per round"
        print(f"{member:15} {told} · {n.rounds:3} rounds")

# %% [markdown]
# *EAGLE-1 tree* is EAGLE-2.
#
# **How to read ±.** These are few texts. With other texts of the same kind each number would move, by about the amount behind the ±. When two numbers differ by less than twice that, their order may be chance. Before you believe a ranking, add prompts to the list and run the two cells again.
#
# By depth: of the drafts that came so far, how many went on? Bars that stay level mean that the head is as good on its own guesses as on the target's states.

# %%
from labkit.viz import charts

chains = {name: acceptance_by_depth(*some) for name, some in runs.items() if "chain" in name}
charts.acceptance_by_depth(chains)

# %% [markdown]
# ### On the clock
#
# The first of the family against the third, and both against plain decoding, on one text, two guesses a round. EAGLE-1 scores every word of the target for each guess, EAGLE-3 a sixth of them. So how much of the difference is acceptance, and how much is price?

# %% tags=["nbval-ignore-output"]
from labkit.lab.race import Race

race = Race(lab, prompts[1], ("eagle1", "eagle3"), draft_length=2, max_new_tokens=24)
race.run()
race

# %% [markdown]
# For comparison, a published ablation. With Llama-3.1-8B as the target, MT-bench prompts, temperature 0 and trees of 60 nodes, Li et al. (2025) report 4.05 tokens per round for EAGLE-2, 5.37 once the head need no longer imitate states, and 6.13 with fused states as well. Those heads are far larger than ours, and saw far more text.
#
# ## States against tokens
#
# What does the head live on? Take something away from it, and see. (It was trained with everything. So this shows what it *uses*, not how good a head without it could become.)
# Guess first: what will hurt more, no tokens or no states? And can it live on one state of the three?

# %%
from labkit.lab import starved

head = heads["eagle3"]
other = "The market closed lower on Friday, and analysts blamed the weather."
diets = {
    "as trained": head,
    "no tokens": starved.without_tokens(head),
    "no states": starved.without_states(head),
    "another text's states": starved.with_states_of(lab, head, other),
}
for place, name in enumerate(head.config.needs):
    diets[f"{name} alone"] = starved.without_states(head, keep=(place,))

# %% tags=["nbval-check-output"]
for name, fed in diets.items():
    drafter = eagle_drafter(fed, name=name)
    n = acceptance(*[rehearse(lab, text, drafter=drafter, draft_length=4) for text in texts[:1]])
    told = f"{n.mean_accepted_length:.2f} ± {n.standard_error:.2f} tokens per round"
    print(f"{name:22} {told} · {n.rate:4.0%} accepted")

# %% [markdown]
# ## The words it can say
#
# Scores for every word of the vocabulary are a large part of the work of so small a head. EAGLE-3 therefore keeps only the words that were frequent in training.

# %%
ask("06-vocabulary")

# %% tags=["nbval-check-output"]
from collections import Counter

words = set(head.vocab_ids.tolist())
written = [token for text in texts for token in text.tokens]
missing = Counter(lab.token_text(token) for token in written if token not in words)
share = 1 - missing.total() / len(written)
print(f"{len(words):,} of the target's {head.config.vocab_size:,} tokens")
print(f"they cover {share:.1%} of the {len(written)} tokens written here")
print("it cannot say:", *(repr(word) for word, _ in missing.most_common(8)))

# %% [markdown]
# Coverage is a ceiling: more than this share of first guesses can never be right.
#
# The head numbers its own words 0, 1, 2, … To be judged, its distribution q is **spread** over the target's vocabulary: each word's mass goes to the word's place there, and all other places get 0. In small:

# %% tags=["nbval-check-output"]
import torch

from labkit.draft import spread

q = torch.tensor([0.5, 0.3, 0.2])  # the head's words 0, 1, 2
kept = torch.tensor([1, 2, 6])  # what they are called in the target
print([round(x, 2) for x in spread(q, kept, vocab_size=8).tolist()])

# %% [markdown]
# ### What d2t means
#
# ●○○ · 3 minutes
#
# Files store the map as `d2t`, a list of **offsets**: how much larger the target's number is than the head's. For the three words above it is `[1, 1, 4]`. Write the function that gives the target's number.


# %%
def to_target(draft_id, d2t):
    raise NotImplementedError


checks.to_target(to_target)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Word 2 of the head has the offset 4, and is word 6 of the target.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def to_target(draft_id, d2t):
#     return draft_id + d2t[draft_id]
# ```
#
# </details>
#
# ## A gallery of silent faults
#
# You have met many small agreements: which states, in which order, paired with which token, normed or not, which number means which word, what stays in the cache. Head and engine must agree on all of them. Where they do not, nothing complains.
#
# Each fault of this gallery has happened to somebody, and was reported in public.

# %%
from labkit.lab import faults

faults.catalogue()

# %%
ask("06-faults")

# %% [markdown]
# One of them from near: the head gets states from *one layer too early*. Before you run the cell, say: will the text change? And the acceptance: by nothing, a little, or by half?

# %% tags=["nbval-ignore-output"]
from labkit.lab.breaking_panel import BreakIt

panel = BreakIt(lab, prompts[0], only=("wrong_layer",), max_new_tokens=16)
panel.run("wrong_layer")
panel

# %% [markdown]
# The text is the target's, to the letter. In one short run not even the acceptance need tell: neighbouring layers of this target say much the same, so the loss is small, and these few rounds cannot show it. That is why the table lets both heads rehearse on more text, the same words for both. The row *tokens of recorded text* says what the fault costs here. Elsewhere it can be most of the gain: of a head for MiniMax-M2.5 a report tells 10 % of first guesses right in place of 45 % (vLLM PR #43671).
#
# Now several of them, each against the healthy head, all of them run for real. Which will cost most? (Put other keys of the table into the list: which of them spare the first guess, and hit only the later ones?)

# %% tags=["nbval-ignore-output"]
chosen = ["layers_early", "norms_swapped", "d2t_absolute", "no_rollback"]
faults.measure(lab, prompts[:1], keys=chosen, max_new_tokens=16)

# %% [markdown]
# The text is right under all of them: it is the target's, and the target judged every token. That is what makes these faults live long. Some cost most of the gain, some so little that you need many prompts to see it; and which is which depends on the head.
#
# How to find them, then? Not by reading texts. Compare *features* with `hidden_states` bit for bit, draft logits with the formulas worked out once more, and acceptance, depth by depth, with what the head had in training. The card of each fault says what shows it.
#
# ## Summary
#
# - An EAGLE head drafts from the target's **states**, which hold more than the text does, and from the **token** that was really chosen: the pair $(f_{t-1},\ x_t)$.
# - EAGLE-1 imitates states; EAGLE-2 is its head with a dynamic tree; EAGLE-3 fuses three depths, learns on its own guesses, and says fewer words; EAGLE-3.1 adds norms.
# - q is spread over the target's vocabulary. A word that the head cannot say costs a guess, never the text.
# - A mean of few rounds has a ±. Look at it before you rank.
# - **A head that is run wrongly writes the right text.** Measure acceptance, by depth.
#
# ## What's next
#
# [07 train a head](07_train_a_head.ipynb) of your own; then, in [08 attention drift](08_attention_drift.ipynb), what the norms of EAGLE-3.1 are for.
