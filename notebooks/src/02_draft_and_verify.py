# %% [markdown]
# # 02 · Draft and verify
#
# **You draft for the real model, step through a round of it, then write the accept rule yourself.**
#
# {{badge}} · ⏱ 20 minutes · ●●○ medium · after lesson 01

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# ## You are the drafter
#
# Anybody may guess for a language model. One turn is played already: somebody typed seven words, and the target judged them. Now it is your turn: type the three or four words that you expect next, and press **Guess**.
# The n-gram and the draft model guess at the very same places. (Who they are comes below.)

# %%
from labkit.lab import contest

question = "What is the capital of France, and what is it known for?"
game = contest.open(lab, question, against=("ngram", "draft"))
game.guess("The capital of France is the city")
game

# %% [markdown]
# Once you part from the target, the rest of your words is lost, however good it was. And whatever you type, the text stays the target's own. Try nonsense.
#
# ## One round, by hand
#
# What happens when you press that button?
# The decode loop of the lab hands out one *event* after the other, and waits. `next(events)` is a single step.
# A run begins with the prompt. Its last token is **pending**: it is text already, but the target has not read it yet.

# %% tags=["nbval-check-output"]
prompt = "My friend has just moved to a new town and feels lonely. What would you say to her?"
events = lab.events(prompt, method="draft", draft_length=4, max_new_tokens=24)
started, prefilled, drafted = next(events), next(events), next(events)

print("prompt tokens read by the target:", prefilled.tokens)
print("pending:", repr(lab.token_text(drafted.tokens[0])))
print("guesses:", [lab.token_text(token) for token in drafted.tokens[1:]])

# %% [markdown]
# How many of these guesses will the target keep? Decide before you go on.
#
# Next, the target **scores** them. The pending token and all guesses go into *one* forward, each one after those before it:
#
# ```
# read       t      a      b      c      d
# out     p(·|t) p(·|a) p(·|b) p(·|c) p(·|d)
# judges     a      b      c      d
# ```
#
# Here t is the pending token, and a b c d are the guesses. p(·|t) is what the target says comes after t, so a is judged by it, and each later guess by the distribution before it.
#
# Five tokens in, five distributions out. The one behind `d` is a gift: if all four guesses stay, it yields a fifth token.

# %% tags=["nbval-check-output"]
scored, verified = next(events), next(events)
print(scored.forwards, "forward of the target,", len(scored.node_slots), "tokens in it")
for trial in verified.trials:
    token = lab.token_text(drafted.tokens[trial.node])
    print(f"{token!r:12}", "accepted" if trial.accepted else "rejected")
print("the target's own token:", repr(lab.token_text(verified.next_token)))

# %% tags=["nbval-check-output"]
committed = next(events)
print("joins the text:", [lab.token_text(token) for token in committed.tokens])
print("written by:    ", list(committed.sources))
events.close()  # leave the run here

# %% [markdown]
# Here the temperature is 0: the target always takes its likeliest token. So the rule is simple: **a guess stays if it is the target's likeliest token there.** At the first guess that is not, the walk ends, and the target's likeliest token takes its place.
#
# ## With dice
#
# At a temperature above 0 the target *draws* its next token from a distribution p, and the drafter draws its guess from its own distribution q. Now "the right token" does not exist. Yet the text must come out as if p alone had been at work.

# %%
from labkit.lab.quiz import ask

ask("02-reject")

# %% [markdown]
# **The rule** (Leviathan et al. 2023, Chen et al. 2023), for a guess x that was drawn from q:
#
# 1. Draw u evenly between 0 and 1. Accept x if **u < min(1, p(x)/q(x))**.
# 2. If it is rejected, draw the target's own token from the **residual**: the positive part of p − q, divided by its sum.
#
# Elsewhere you may read that a token is rejected "if P(draft) is below P(target)", or the other way round. Both are wrong. Where p is at least q, the token always stays. Where p is below q, it stays with chance p/q: less often, but not never.
#
# Why it works: x is offered with chance q(x) and kept with min(1, p(x)/q(x)), so it gets min(p(x), q(x)) that way. What is missing up to p(x) is exactly the positive part of p − q, and the rejections have just the mass to fill it.
#
# Greedy decoding is the same rule: with temperature 0, p is 1 for one token and 0 for all others, so u decides nothing any more.

# %% tags=["nbval-check-output"]
sampled = lab.record(
    prompt,
    method="draft",
    draft_length=4,
    temperature=0.8,
    seed=1,
    max_new_tokens=24,
    detail="full",
)
print("round  guess            p     q   min(1, p/q)   u")
for r in sampled.rounds[:5]:
    for t in r.verified.trials:
        guess = repr(lab.token_text(r.drafted.tokens[t.node]))
        numbers = f"{t.p:.2f}  {t.q:.2f}     {t.threshold:.2f}      {t.u:.2f}"
        print(f"{r.index:5}  {guess:14} {numbers}", "accepted" if t.accepted else "rejected")

# %% [markdown]
# Find a guess with p < q that was accepted, and one that was rejected. Same rule, other u.
#
# The same run in the stepper, at the end of its first round with a rejection. Step back with ← and watch the [tests](#labkit-inspector) one by one. A dot inside its [zone](#labkit-threshold) is an accepted guess.

# %% tags=["nbval-ignore-output"]
from labkit.viz import Note, Stepper

notes = [
    Note("This zone reaches from 0 to min(1, p/q).", "threshold", phase="verify"),
    Note("This dot is u. Inside the zone the guess stays.", "u", phase="verify"),
    Note("Rejected: the target's own token is drawn from what p has over q.", "residual"),
]
stepper = Stepper(sampled, notes=notes)
stepper.goto(round=next(r.index for r in sampled.rounds if r.verified.resampled))
stepper

# %% [markdown]
# ## How a round ends

# %%
ask("02-end")

# %% [markdown]
# So a round ends in one of two ways, and both add one token of the target's own:
#
# - after a rejection ↻: a token from the **residual**;
# - after the last guess was accepted ★: a **bonus** token from p.
#
# It does not "fall back to plain decoding", as is sometimes said: the next round drafts again.
#
# ## Exercise: the accept rule
#
# ●●○ · 8 minutes
#
# First, the test for one guess. `p` and `q` are the two chances of the guessed token, `u` is the draw.

# %%
from labkit.lab import checks


def accept(p, q, u):
    raise NotImplementedError


checks.accept(accept)

# %% [markdown]
# Second, what a rejection leaves. `p` and `q` are now whole distributions: torch tensors with one number per token.


# %%
def residual(p, q):
    raise NotImplementedError


checks.residual(residual)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `(p - q).clamp(min=0)` puts 0 where a number is negative. A distribution has the sum 1.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def accept(p, q, u):
#     return u < min(1.0, p / q)
#
#
# def residual(p, q):
#     positive = (p - q).clamp(min=0)
#     return positive / positive.sum()
# ```
#
# </details>
#
# And this is the source that runs when the lab decodes. Yours is the heart of it; it also walks trees, and works on a GPU without waiting for it.

# %%
from labkit.lab.show import show
from labkit.verify import verify

show(verify)

# %% [markdown]
# ## Four drafters
#
# Anything may draft, since the target judges. Four drafters on one prompt, at temperature 0:
#
# - **n-gram**: looks the last tokens up in the text so far and copies what followed them there. No model at all.
# - **draft model**: the small model that you know.
# - **target itself**: the target drafts for itself.
# - **late**: the draft model with a programming fault, it overlooks the newest token, so each guess comes one place late.

# %%
ask("02-fault")

# %%
from labkit.drafters.draft_model import DraftModel
from labkit.lab.broken import Late

drafters = {
    "n-gram": lab.drafter("ngram"),
    "draft model": lab.drafter("draft"),
    "target itself": DraftModel(lab.model, vocab_size=lab.target.vocab_size),
    "late": Late(lab.drafter("draft")),
}

# %% tags=["nbval-check-output"]
from labkit.metrics import acceptance

prompt = "Write a Python function that checks whether a word is a palindrome."
plain = lab.record(prompt, method="ar", max_new_tokens=30)
counts = {}
for name, drafter in drafters.items():
    run = lab.record(prompt, drafter=drafter, draft_length=4, max_new_tokens=30)
    counts[name] = n = acceptance(run)
    same = "same text" if run.tokens == plain.tokens else "OTHER TEXT"
    print(f"{name:14} {same} · drafted {n.drafted:3} · accepted {n.accepted:3} · rounds {n.rounds}")

# %%
from labkit.viz import charts

charts.acceptance_by_position(counts)

# %% [markdown]
# - The text is the same four times. **It tells you nothing about the drafter**; acceptance does.
# - The target as its own drafter is always right, and useless: each guess costs as much as the token it saves.
# - The n-gram costs nothing, and drafts only when it finds something to copy.
# - The fault in the last one would never show in the text. When a drafter accepts less than you expect, look for such a fault first.
#
# ## Summary
#
# - A round: draft a few tokens, score all of them in one forward, accept from the left, add one token of the target's own.
# - Accept with chance **min(1, p/q)**; after a rejection draw from the **residual**. At temperature 0 that means: keep a guess if it is the target's likeliest token.
# - Everything behind a rejected token goes with it.
# - A poor or faulty drafter lowers acceptance, and never changes what is written.
#
# ## What's next
#
# [03 lossless](03_lossless.ipynb): the claim that nothing is lost, proved to the last digit, and rules that break it.
