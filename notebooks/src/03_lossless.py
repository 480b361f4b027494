# %% [markdown]
# # 03 · Lossless
#
# **You check to the last digit that speculation does not change what the model says, and catch rules that do.**
#
# {{badge}} · ⏱ 25 minutes · ●●○ medium · after lesson 02

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# ## What "lossless" means
#
# - At **temperature 0**: the same tokens as plain decoding, one by one.
# - **With sampling**: the same *law*. Every possible text has the same probability as in plain decoding.
#
# The first is easy to check on the real model.

# %% tags=["nbval-check-output"]
prompts = [
    "A train travels 60 kilometres in 45 minutes. What is its speed?",
    "Write a Python function that checks whether a word is a palindrome, and show two examples.",
]
for prompt in prompts:
    plain = lab.record(prompt, method="ar", max_new_tokens=24)
    for method in ("draft", "ngram"):
        run = lab.record(prompt, method=method, draft_length=4, max_new_tokens=24)
        same = run.tokens == plain.tokens
        print(f"{method:6} {len(plain.rounds)} → {len(run.rounds)} forwards · same tokens: {same}")

# %% [markdown]
# Same tokens. What does that prove?

# %%
from labkit.lab.quiz import ask

ask("03-greedy")

# %% [markdown]
# ## A law can be computed
#
# To test a rule for sampling, do not look at texts. Take a vocabulary of three tokens and write down *everything* that can happen in a round: each token that may be drafted, accepted or not, each token that may be drawn after a rejection.
# Multiply the chances along each course of events, add up by outcome, and you have the exact law. Nothing is sampled, so there is no noise.

# %% tags=["nbval-check-output"]
from labkit.lab.laws import first_token, largest_gap
from labkit.verify import verify

tokens = [" red", " green", " blue"]
p = (0.6, 0.3, 0.1)  # the target
q = (0.2, 0.5, 0.3)  # the drafter
law = first_token(verify, p=p, q=q)
print("target p:        ", p)
print("law of the round:", tuple(round(x, 9) for x in law))
print("largest difference below 10⁻¹²:", largest_gap(law, p) < 1e-12)

# %% [markdown]
# By hand:
#
# | token | offered q | kept min(1, p/q) | kept in all | from the residual | sum |
# |---|---|---|---|---|---|
# | red | 0.2 | 1 | 0.2 | 0.4 | **0.6** |
# | green | 0.5 | 0.6 | 0.3 | 0 | **0.3** |
# | blue | 0.3 | 1/3 | 0.1 | 0 | **0.1** |
#
# 0.4 of all rounds end in a rejection, and all of them go to red: only there p exceeds q.
#
# ## Rules that look right
#
# Three verifiers with a plausible fault, taken from articles and from real programs:
#
# - **threshold**: reject whenever p < q;
# - **swapped**: accept with min(1, q/p);
# - **from_p**: after a rejection, draw from p itself instead of the residual.
#
# Which of them will the greedy test of above find? Which one gives the worst law? Guess, then look.

# %%
from labkit.lab.broken import FAULTS
from labkit.viz import charts

rules = {"right rule": verify}
rules |= {name: FAULTS[name] for name in ("threshold", "swapped", "from_p")}
laws = {name: first_token(rule, p=p, q=q) for name, rule in rules.items()}
charts.law_comparison({"target p": p} | laws, tokens=tokens)

# %% [markdown]
# - *threshold* never writes green or blue, although the target wants them in 40 % of cases.
# - *swapped* lets the drafter's favourites through; here its law is the drafter's own.
# - *from_p* is the quietest: green comes in 42 % instead of 30 %. The text reads well. Nobody would notice without computing.
#
# Now the same rules for a target at temperature 0, where p is all on one token.

# %% tags=["nbval-check-output"]
greedy = (0.0, 1.0, 0.0)
for name, rule in rules.items():
    law = first_token(rule, p=greedy, q=q)
    print(f"{name:12}", [round(x, 3) for x in law])

# %% [markdown]
# Two of the three faults are **invisible** to every greedy test. That is why the tests of this lab enumerate laws.
#
# ## Would you notice?
#
# Three tokens make a small world. The panel below runs SmolLM2, healthy and with a fault. With `top_k=5` both models keep their five likeliest tokens, few enough to enumerate: so the check *enumerated law* takes the p and q of the first rounds of *this* run, and adds up every course of events.
#
# Predict before you look: the accept test with p and q swapped. Will the text read badly? Will more be accepted, or less? Which of the checks will notice?

# %% tags=["nbval-ignore-output"]
from labkit.lab.breaking_panel import BreakIt

question = "Why do leaves change colour in autumn?"
panel = BreakIt(lab, question, only=("swapped", "from_p"), max_new_tokens=24)
panel.run("swapped")
panel

# %% [markdown]
# It looks like progress: nearly every guess passes. But what passes is what the *drafter* likes, and the target hardly has a say. Slots, positions and the target's own probabilities are right, and the words sound like words. Only the enumerated law tells. In the healthy run it is p, with real numbers too.
#
# Now run *Resample from p*. Predict first: does acceptance tell you anything this time?
#
# ## The distribution must be the one that was used
#
# One more trap, and the verifier is not even at fault. A drafter takes its *likeliest* token, but hands over its whole distribution q as if it had drawn from it. This slip has been made in a widely used library.
# The rule then divides by a chance that was never at work:

# %% tags=["nbval-check-output"]
five_p = (0.30, 0.25, 0.20, 0.15, 0.10)
five_q = (0.60, 0.10, 0.10, 0.10, 0.10)
print("target p: ", list(five_p))
print("drawn:    ", [round(x, 3) for x in first_token(verify, p=five_p, q=five_q)])
law = first_token(verify, p=five_p, q=five_q, argmax_draft=True)
print("likeliest:", [round(x, 3) for x in law])

# %% [markdown]
# A deterministic guess must be judged as what it is: drawn with chance 1. Then min(1, p/q) = p, and the residual is p without that token. (This is what the lab does for n-grams.)
#
# ## Exercise: one of four is guilty
#
# ●●○ · 8 minutes
#
# Four verifiers, A to D. Three follow the rule, one does not. Here are their laws for a drafter that is as good as can be, q = p:

# %% tags=["nbval-check-output"]
from labkit.lab.broken import suspects

four = suspects()
for letter, verifier in four.items():
    law = first_token(verifier, p=(0.5, 0.3, 0.2), q=(0.5, 0.3, 0.2))
    print(letter, [round(x, 3) for x in law])

# %% [markdown]
# No difference. Find a drafter that brings the fault to light: change `my_q`, and `my_p` if you like. Then say who it is, and which fault it has:
# `"swapped"`, `"threshold"`, `"from_p"` or `"no_clip"` (the size of p − q instead of its positive part).

# %%
from labkit.lab import checks

my_p = (0.5, 0.3, 0.2)
my_q = (0.5, 0.3, 0.2)
for letter, verifier in four.items():
    print(letter, [round(x, 3) for x in first_token(verifier, p=my_p, q=my_q)])

suspect = None  # "A", "B", "C" or "D"
fault = None  # "swapped", "threshold", "from_p" or "no_clip"
checks.guilty(suspect, fault)

# %% [markdown]
# <details><summary>Hint</summary>
#
# A good drafter hides faults: when q = p nothing is ever rejected. Take a drafter that is badly wrong, such as q = (0.1, 0.1, 0.8). To tell the faults apart, use a p with a 0 in it, and compute by hand what each fault would give.
#
# </details>
# <details><summary>Solution</summary>
#
# With p = (0.5, 0.3, 0.2) and q = (0.1, 0.1, 0.8), C gives (0.4, 0.28, 0.32): the drafter's favourite comes too often. By hand: kept in all are min(p, q) = (0.1, 0.1, 0.2), so 0.6 of the rounds end in a rejection. C spreads these 0.6 like p: 0.6 · (0.5, 0.3, 0.2) = (0.3, 0.18, 0.12). The sum is what you see.
#
# ```python
# suspect, fault = "C", "from_p"
# ```
#
# </details>
#
# ## The same law, other tokens

# %%
ask("03-sampled")

# %% tags=["nbval-check-output"]
prompt = "Suggest a name for a cat."
for method in ("ar", "draft"):
    run = lab.record(prompt, method=method, temperature=1.0, seed=3, max_new_tokens=16)
    print(f"{method:6}", repr(run.text))
again = lab.record(prompt, method="draft", temperature=1.0, seed=3, max_new_tokens=16)
print("draft, same seed again: same tokens:", again.tokens == run.tokens)

# %% [markdown]
# Same seed, other text: both lawful. Within one method a seed still fixes everything.
#
# ## When numbers have few bits
#
# Computers round. A forward over one token and a forward over five may add the same numbers in another order, and get results that differ in the last digit. In `float32` this hardly ever decides anything.
# In `bfloat16`, which GPUs like, neighbouring numbers between 16 and 32 are 0.125 apart, and the two best logits (scores before they become probabilities) are often as close as that. Then one rounding decides: a **near tie**.
#
# Let us measure. First: how far apart are the logits of the same eight tokens, read one by one and read in one block?

# %% tags=["nbval-ignore-output"]
from labkit.lab.load import load_model
from labkit.lab.measure import step_block_gap
from labkit.lab.session import Lab

narrow = load_model(dtype="bfloat16")
for name, loaded in {"float32": lab.loaded, "bfloat16": narrow}.items():
    for width in (1, 16):
        gap = step_block_gap(Lab(loaded, width=width))
        print(f"{name:9} rows per forward: {width:2} at least · largest difference {gap:.6f}")

# %% [markdown]
# `width=16` fills every forward up to 16 rows, whatever is in it. A matrix kernel may choose its order of additions by the number of rows; with a fixed number it has no choice. A difference of 0 means: one by one and in one block agree **bit for bit**, on this machine with these kernels.
# If a difference remains, the kernels of your machine treat rows differently by their place, and no setting of the lab can mend that.
#
# What do such differences do to a text? Plain against speculative decoding in `bfloat16`, with forwards as they come and with forwards of fixed width. Where two texts part, both candidates are looked up in the logits.

# %% tags=["nbval-ignore-output"]
from labkit.lab.compare import first_difference

prompt = "Explain why leaves change colour in autumn."
for width in (1, 16):
    bench = Lab(narrow, width=width)
    runs = [bench.record(prompt, method=m, max_new_tokens=16) for m in ("ar", "draft")]
    found = first_difference(bench.target, runs[0].prompt, runs[0].tokens, runs[1].tokens)
    print(f"width {width:2}:", found or "the same 16 tokens")
    if found and found.left and found.right:
        print(
            "         ", repr(lab.token_text(found.left)), "or", repr(lab.token_text(found.right))
        )

# %% [markdown]
# A fixed width costs time: each single step pays for 16 rows. It is a tool for finding faults, not for speed.
#
# This is the honest state of things for every engine: in `bfloat16`, stepwise and blockwise texts can part at near ties. It is rounding, not the accept rule. To tell the two apart, look at the first difference: if the two logits are *not* nearly equal there, something else is wrong. (After it, everything may differ, since the texts are no longer the same.)
#
# ## Summary
#
# - Lossless means the same **tokens** at temperature 0, and the same **law** with sampling. Not the same sampled text.
# - The law can be **enumerated** exactly. The right rule gives p, whatever q; plausible wrong rules do not.
# - Greedy tests miss wrong rules, and so do good drafters. Test with sampling, and with a bad drafter.
# - q must be the distribution that the token was really drawn from; a deterministic guess has q = 1.
# - In few bits, **near ties** can part the texts. That is rounding, and it can be told from a fault.
#
# ## What's next
#
# [04 KV slots and rollback](04_kv_slots_and_rollback.ipynb): rejected tokens leave traces in the model's memory. How to get rid of them.
