# %% [markdown]
# # 01 · Why decoding is slow
#
# **You measure on your own machine why a model writes so slowly, and find the bargain that speculative decoding lives on.**
#
# {{badge}} · ⏱ 15 minutes · ●○○ easy · after lesson 00

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# ## One after the other
#
# Watch the target write six tokens. Each line is one **forward**: all layers, once.

# %% tags=["nbval-check-output"]
written = []
for event in lab.events("Why is the sky blue?", method="ar", max_new_tokens=6):
    if event.kind == "committed":
        written.append(lab.token_text(event.tokens[0]))
        print("forward", event.round, "→", written)

# %% [markdown]
# Forward 4 needs the token that forward 3 wrote. It cannot begin earlier, however many processors are idle. Decoding is **sequential**.
#
# ## What one forward reads
#
# A model is a long list of numbers, its **weights**. Every forward uses all of them, and they are far too many for the processor's own fast memory.
# So they are read from main memory again, for every single token.

# %% tags=["nbval-check-output"]
from labkit.lab.measure import weight_bytes

weights = sum(w.numel() for w in lab.model.parameters())
size = weight_bytes(lab)
print(f"{weights:,} weights, {size:,} bytes in 32 bits each")

# %% [markdown]
# ## Predict, then measure
#
# A forward can take several tokens at once, when they are known already. It then does the arithmetic for each of them.
# **How long does a forward with 8 tokens take, measured in forwards with one token?** Type your guess. Is it 8? 4? 1?

# %%
my_guess = None  # for example 8

# %% tags=["nbval-ignore-output"]
from labkit.lab.measure import forward_seconds
from labkit.viz import charts

seconds = forward_seconds(lab, (1, 2, 4, 8, 16, 32))
charts.forward_time({n: 1000 * s for n, s in seconds.items()})

# %% tags=["nbval-ignore-output"]
from labkit.lab.quiz import ask, compare

compare(my_guess, seconds[8] / seconds[1], unit="single forwards")

# %% [markdown]
# On a quiet machine with two processor cores, this model takes between 1 and 2 single forwards for 8 tokens. If yours shows more, look at what else it is doing, and run the cell again.
# Can you explain it?

# %%
ask("01-why")

# %% [markdown]
# ## Counting bytes and operations
#
# From time and size follows how fast memory was read, *at least*. And since every weight is multiplied once and added once for each token, we know how much was computed.

# %% tags=["nbval-ignore-output"]
print("tokens   read from memory   computed")
for n, s in seconds.items():
    read = size / s / 1e9
    computed = 2 * weights * n / s / 1e9
    print(f"{n:6}   {read:11.1f} GB/s   {computed:6.1f} billion operations/s")

# %% [markdown]
# Read the two columns from top to bottom. With one token, the processor computes slowly *because it waits for weights*. With more tokens, each weight that arrives is used several times: far more is computed per second, while the reading hardly slows down.
#
# This is what "decoding is **memory-bound**" means. Three remarks, to be exact:
#
# - The bargain ends. With enough tokens in a forward, arithmetic becomes the limit, and the curve rises. On this small model and two cores that begins early; on a GPU with a large model it can take hundreds of tokens.
# - The number is a lower bound: keys, values and intermediate results are read and written too.
# - Serving many users at once uses the same bargain: their tokens share a forward. Then less of it is left for speculation (move the sliders of lesson 12).
#
# ## Why not always eight at once?

# %%
ask("01-parallel")

# %% [markdown]
# There is one place where many tokens *are* known: the prompt. It is read in few large forwards, and so costs far less per token than writing does.

# %% tags=["nbval-ignore-output"]
trace = lab.record("Why is the sky blue?", method="ar", max_new_tokens=8)
prompt_ms = 1000 * trace.prefilled.seconds / trace.prefilled.tokens
write_ms = 1000 * sum(r.scored.seconds for r in trace.rounds) / len(trace.tokens)
print(f"reading the prompt: {prompt_ms:5.1f} ms per token")
print(f"writing:            {write_ms:5.1f} ms per token")

# %% [markdown]
# ## The idea
#
# Let somebody quick *guess* the next K tokens. Then they are "known", if only on trial, and the target can score all of them in **one** forward. Right guesses are kept.
#
# What does a round yield? Say that each guess is right with chance α, whatever came before. The second guess counts only if the first was right too, the third only if the first two were. And one token is certain: the target adds it itself.
#
# ## Exercise: tokens per round
#
# ●●○ · 5 minutes
#
# Write the average number of tokens that a round adds, for acceptance `alpha` and `K` guesses.

# %%
from labkit.lab import checks


def expected_tokens(alpha, K):
    raise NotImplementedError


checks.expected_tokens(expected_tokens)

# %% [markdown]
# <details><summary>Hint</summary>
#
# The first guess stays with chance α, the second with chance α · α, the third with α · α · α. Averages add up.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def expected_tokens(alpha, K):
#     return sum(alpha**i for i in range(K + 1))
# ```
#
# The term with i = 0 is the target's own token.
#
# </details>
#
# ## The price
#
# A round is not free. It costs K steps of the drafter, each of them *c* target forwards long, and one target forward over K + 1 tokens, which is *v* single ones. So
#
# $$\text{speed-up} = \frac{1 + \alpha + \alpha^2 + \dots + \alpha^K}{K\,c + v}$$
#
# (Leviathan, Kalman and Matias 2023, with *v* = 1.) Two examples with *v* = 1: a good cheap drafter, and a poor dear one.

# %% tags=["nbval-check-output"]
from labkit.cost import speedup, verdict

print(verdict(speedup(alpha=0.8, draft_length=4, cost_ratio=0.1)))
print(verdict(speedup(alpha=0.3, draft_length=4, cost_ratio=0.3)))

# %% [markdown]
# Acceptance alone does not decide: the cost of drafting and of checking count as much.
#
# ## What if
#
# Here is the formula with *v* as you measured it above, and one point that needs no formula: a run with the draft model of lesson 00, timed beside plain decoding.
#
# First answer, then move the sliders. Can you find a setting that is twice as fast? One where no number of guesses pays?

# %% tags=["nbval-ignore-output"]
from labkit.machine import machine_of
from labkit.viz import Change, WhatIf

prompt, settings = "Why is the sky blue?", {"eos": None, "max_new_tokens": 32}
plain = lab.record(prompt, method="ar", **settings)
run = lab.record(prompt, method="draft", draft_length=4, **settings)
here = machine_of({"draft": [run]}, plain=[plain], forward=seconds, about="your machine")
WhatIf(here, ask=Change("draft_length", 2, 12))

# %% [markdown]
# Under *Acceptance*, choose "as measured: draft". Then α is no longer a guess, and the curve should pass near the measured point.
#
# ## Summary
#
# - Decoding is **sequential**: a token must be known before the next one can be computed.
# - It is **memory-bound**: each forward reads all weights, and for few tokens the processor waits for them.
# - So a forward over several tokens costs little more than one over a single token. You measured how little.
# - Speculative decoding buys at this price: guess first, then check many guesses in one forward. It pays when guesses are cheap and often right, and costs when they are not.
#
# ## What's next
#
# [02 draft and verify](02_draft_and_verify.ipynb): how the target decides which guesses stay.
