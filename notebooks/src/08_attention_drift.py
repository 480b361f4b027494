# %% [markdown]
# # 08 · Attention drift
#
# **You follow a head down a long chain, watch what its own states and its attention do there, and see what EAGLE-3.1 changed, and what it did not.**
#
# {{badge}} · ⏱ 20 minutes · ●●● demanding · after lesson 07

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")
heads = {
    "EAGLE-3": lab.drafter("eagle3").head,
    "EAGLE-3.1": lab.drafter("eagle31").head,
}

# %% [markdown]
# ## Further than it has practised
#
# In training our heads drafted three steps deep (lesson 07). What if a chain goes on for twelve? From the second step on, a head reads its own states, then states made from these, and so on.

# %%
from labkit.lab.quiz import ask

ask("08-size")

# %% [markdown]
# One step of the head, and the two places where the versions differ:
#
# ```
#                                                     ┌─ normed ─ output layer ─ guess
# target's h_early ─ (A) ─┐                           │
# target's h_mid   ─ (A) ─┼─ fc ─ state ─┬─ layer ─ + ─ norm
# target's h_late  ─ (A) ─┘          ▲   └──────────┘ │
#                                    └──────(B)───────┘  state of the next step
# ```
#
# - **(A)** `fc_norm`: EAGLE-3.1 norms each of the three states before they are mixed. EAGLE-3 mixes them as they are.
# - **(B)** `norm_output`: EAGLE-3.1 hands the *normed* state on to the next step. EAGLE-3 hands on the raw sum.
#
# That is all. Two normalisations; a checkpoint says with two switches which it has.

# %% tags=["nbval-check-output"]
for name, head in heads.items():
    c = head.config
    norms = [n for n, _ in head.named_parameters() if n.startswith("fc_norm")]
    print(f"{name:10} fc_norm {c.fc_norm!s:6} norm_output {c.norm_output!s:6}", norms)

# %% [markdown]
# ### Why (A)?
#
# The three states differ in size. Here is the typical number (root mean square) of each, over the tokens of one text, and the largest single one:

# %% tags=["nbval-check-output"]
from labkit.target import Target

needs = heads["EAGLE-3"].config.needs
target = Target(lab.model, needs=needs)
states = target.prefill(lab.tokens("Why do leaves change colour in autumn?"))
for name in needs:
    size = states[name].pow(2).mean(-1).sqrt()
    print(f"{name:4} first token {size[0]:7.1f} · typical {size[1:].median():5.1f}", end="")
    print(f" · largest number {states[name].abs().max():8.0f}")

# %% [markdown]
# Late states are several times larger than early ones, so without a norm they dominate the mix. And the *first* token of a text carries a few enormous numbers. They are no accident: many models keep such a token as a place where attention can rest when there is nothing to look for, an **attention sink**.
#
# ## Exercise: what is handed on
#
# ●●○ · 6 minutes
#
# `x` is the sum after the layer, a row of numbers; `weight` belongs to the norm. Return two rows: what the output layer reads, and what the next step reads. RMSNorm divides by the root of the mean of the squares, then multiplies by the weight.

# %%
from labkit.lab import checks


def handed_on(x, weight, norm_output):
    raise NotImplementedError


checks.handed_on(handed_on)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `x.pow(2).mean().sqrt()` is the size of the row. The output layer reads the same in both versions.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def handed_on(x, weight, norm_output):
#     normed = x / x.pow(2).mean().sqrt() * weight
#     return normed, normed if norm_output else x
# ```
#
# </details>
#
# ## Down the chain
#
# Now the measurement. The target writes some text; then each head drafts twelve steps from *every* place of it at once, exactly like the training-time test, only deeper. What does its state do?

# %% tags=["nbval-check-output"]
questions = [
    "Why do leaves change colour in autumn?",
    "Write a Python function that adds two numbers.",
    "Give me three tips for learning a language.",
]
texts = [lab.record(q, method="eagle31", max_new_tokens=36) for q in questions]
print("tokens:", sum(len(text.tokens) for text in texts))

# %%
from labkit.lab.drift import drift
from labkit.viz.courses import course

steps = 12
found = {name: drift(lab, head, texts, steps=steps) for name, head in heads.items()}
sizes = {name: {at.step: at.size for at in rows} for name, rows in found.items()}
course(sizes, quantity="size of the state that is handed on", along="steps of the chain")

# %% [markdown]
# The switch (B) holds the state of EAGLE-3.1: whatever the layer adds, the norm brings the sum back to one size. The state of EAGLE-3 is free to move.
#
# Sizes alone harm nobody, since the layer norms what it reads. But the state also goes *around* the layer. In a state ten times as large, what the layer adds counts a tenth.
#
# ### Where attention looks
#
# The head's attention is a budget of 100 %, spent on four kinds of pairs: the text's first one (the sink), the rest of the prompt, what has been written, and the head's own guesses.

# %% tags=["nbval-check-output"]
for name, rows in found.items():
    print(f"{name:10} step  first  prompt  reply  own guesses")
    for at in rows:
        if at.step in (1, 2, 3, 4, 6, 8, 12):
            shares = f"{at.first:5.0%}  {at.prompt:6.0%} {at.reply:6.0%} {at.own:8.0%}"
            print(f"{'':10} {at.step:4}  {shares}")

# %%
own = {name: {at.step: at.own for at in rows} for name, rows in found.items()}
course(own, quantity="share of attention on its own guesses", along="steps of the chain")

# %% [markdown]
# Some growth is natural: the longer the chain, the more there is of it to look at. Eldenk et al. (2026) call it **attention drift** when attention leaves the sink and the prompt for the drafter's own latest tokens, and trace it to states that grow.
#
# ### What it costs
#
# Of the chains whose guesses have all been right so far, how many get the next one right too?

# %%
rates = {name: {at.step: at.acceptance.rate for at in rows} for name, rows in found.items()}
course(rates, quantity="share of next guesses right", along="steps of the chain")

# %% tags=["nbval-check-output"]
for name, rows in found.items():
    told = [f"{at.acceptance.accepted}/{at.acceptance.reached}" for at in rows]
    print(f"{name:10} right/reached:", *told)

# %% [markdown]
# Look at the counts before you read the right end of this chart: few chains get that far, so the last shares rest on few cases.
#
# ## Flip a switch
#
# A head must be run the way it was trained. What happens when a checkpoint's switch is read wrongly? That is another fault than drift, and it is common: tools have dropped these very switches silently (vLLM #38111 and #46488, NeMo #2897).

# %% tags=["nbval-check-output"]
from labkit.drafters.eagle import eagle_drafter
from labkit.lab import broken_heads
from labkit.lab.rehearse import rehearse
from labkit.metrics import acceptance

three, one = heads.values()
variants = heads | {
    "EAGLE-3, (B) switched on": broken_heads.feedback_flipped(three),
    "EAGLE-3.1, (B) switched off": broken_heads.feedback_flipped(one),
    "EAGLE-3.1, (A) left out": broken_heads.fuse_norm_dropped(one),
}
for told, head in variants.items():
    n = acceptance(*[rehearse(lab, t, drafter=eagle_drafter(head), draft_length=5) for t in texts])
    print(f"{told:28} {n.mean_accepted_length:.2f} ± {n.standard_error:.2f} tokens per round")

# %%
ask("08-text")

# %% [markdown]
# ## Another template
#
# The authors report the largest gain, up to twice the accepted length, when the *template* around the prompt is not the one of training. Our heads were trained on one template only. Three ways to ask:

# %% tags=["nbval-check-output"]
question = "Give me three tips for learning a language."
asked = {
    "template of training": lab.tokens(question),
    "no template": lab.tokens(question, chat=False),
    "another one": lab.tokens(f"Question: {question}\nAnswer:", chat=False),
}
for told, ids in asked.items():
    text = lab.record(ids, method="eagle31", max_new_tokens=28, eos=None)
    for name, method in (("EAGLE-3", "eagle3"), ("EAGLE-3.1", "eagle31")):
        n = acceptance(rehearse(lab, text, method=method, draft_length=5))
        print(f"{told:22} {name:10} {n.mean_accepted_length:.2f} ± {n.standard_error:.2f}")

# %% [markdown]
# The prompts differ here, so the *texts* differ too. Compare the two heads on one line pair, and mind the ±.
#
# ## What the press says

# %%
ask("08-press")

# %% [markdown]
# | what one reads | what was released |
# |---|---|
# | "periodic synchronisation of attention weights with the target" | Nothing of the kind. Two norms; the target still gives its states, as before. |
# | "attention drift" as the problem | Right: so the paper (arXiv 2605.09992) and the blog post call it. |
# | "20 to 30 % faster than EAGLE-3" | Not in the release. The paper reports 1.10× the accepted length on seven benchmarks, 1.18× on long contexts, up to 2× under perturbed templates. |
# | "2× on long contexts" | The blog post says so; the paper gives the 2× to perturbed templates. The two disagree. |
# | "drop-in" | Right: two switches, off by default. But a head must be *trained* with them; an old one gains nothing. |
#
# With short chains the difference is small in published measurements too: on three drafted tokens, cards report 3.0 to 3.1 tokens per round before and after. Expect it where chains are long, and where the text is unlike the training.
#
# And on your machine? The two heads race with chains of 8, far beyond what they practised. Which will win: EAGLE-3.1, EAGLE-3, or plain decoding?

# %% tags=["nbval-ignore-output"]
from labkit.lab.race import Race

race = Race(lab, questions[2], ("eagle3", "eagle31"), draft_length=8, max_new_tokens=16)
race.run()
race

# %% [markdown]
# Where a chain is long enough to drift, it must also be *worth* being that long: every guess is drafted and verified, right or wrong. Change `draft_length` to 2 and race again.
#
# ## Summary
#
# - From the second step on, a head lives on its own states. Raw sums may grow with each step, and attention moves towards the head's own guesses.
# - EAGLE-3.1 is **two normalisations**: of what is fused, and of what is handed on. Nothing is synchronised with the target.
# - A switch that is read wrongly never shows in the text.
# - Our heads are small and saw little text; whether 3.1 wins here is what your numbers say, within their ±.
#
# ## What's next
#
# Lesson 09: heads that target models bring along themselves.
