# %% [markdown]
# # 12 · Playground
#
# **You take the wheel: edit drafts, be the drafter, write a drafter, race, break the rules, and keep what you find.**
#
# {{badge}} · ⏱ 30 minutes for one tour · ●○○ open · after lesson 02

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")
prompt = "Explain in two sentences why the sky is blue."

# %% [markdown]
# Nothing here has to be done in order: each part is one tool and one question. Change the prompt above to whatever you like.
#
# ## Take the wheel
#
# One text in the making, round by round. Press **Draft** and look: nothing has been judged yet. Change a guess to nonsense and press **Verify**. The text does not suffer, only the speed does.
#
# A guess that you have seen is judged as if it were certain (q = 1), because you could have changed it. A token that you *force* (⚑) is not the target's, and no figure counts it. Go back two rounds and take another way: the slots of the rounds you left are simply forgotten, and the old branch stays.

# %%
from labkit.lab import live

bench = live.open(lab, prompt, method="eagle31", draft_length=3)
bench.draft()
bench

# %% [markdown]
# All of it works from code too, so an experiment can be written down. Here is a bad joke in the middle of a draft:

# %% tags=["nbval-check-output"]
other = live.open(lab, prompt, method="eagle31", draft_length=3)
other.draft()
other.replace(1, " banana")
other.verify()
other.run(4)
print(other.text)

# %% tags=["nbval-check-output"]
plain = lab.record(prompt, method="ar", max_new_tokens=len(other.tokens))
print("the target's own text all the same:", tuple(other.tokens) == plain.tokens)

# %% [markdown]
# ## Be the drafter
#
# Type what comes next. The target judges your words like any other draft, token by token; the others guess at the very same places.

# %%
from labkit.lab import contest

game = contest.open(lab, "Tell me why the sea is salty.", against=("ngram", "draft", "eagle31"))
game.guess("The sea is salty because")
game

# %% [markdown]
# ## The race
#
# Plain decoding and two other methods write the same text. Which is first, and will one of them be *slower* than plain decoding? Bet before you look, then press **Start** for a race of your own. Any method of the lab may run: `"ngram"`, `"draft"`, `"eagle1"`, `"eagle2"`, `"eagle3"`, `"eagle31"`, `"mtp"`, `"medusa"`.

# %% tags=["nbval-ignore-output"]
from labkit.lab.race import Race

race = Race(lab, prompt, ("draft", "eagle31"), max_new_tokens=32)
race.run()
race

# %% [markdown]
# Now give both more rope, with `draft_length=8` as a further argument. More guesses, fewer rounds, and yet?
#
# ## Write a drafter

# %%
from labkit.lab.quiz import ask

ask("12-own")

# %% [markdown]
# ## Exercise: copycat
#
# ●●○ · 8 minutes
#
# A drafter is a function: the text so far in, guesses out. Yours looks for the *latest earlier* place of the last token, and copies the k tokens that followed it there. Where there is no such place it returns an empty list.


# %%
def copycat(tokens, k):
    raise NotImplementedError


from labkit.lab import checks

checks.copycat(copycat)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `range(len(tokens) - 2, -1, -1)` walks through all places before the last one, backwards.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def copycat(tokens, k):
#     for i in range(len(tokens) - 2, -1, -1):
#         if tokens[i] == tokens[-1]:
#             return list(tokens[i + 1 : i + 1 + k])
#     return []
# ```
#
# </details>
#
# Let it draft for the real model. (An empty cell above counts as a drafter that has no idea.)

# %% tags=["nbval-ignore-output"]
from labkit.drafters.scripted import guessing
from labkit.metrics import acceptance

often = "Write the word tomato ten times, separated by commas."
run = lab.record(often, drafter=guessing(copycat), draft_length=3, max_new_tokens=32)
same = run.tokens == lab.record(often, method="ar", max_new_tokens=32).tokens
print(f"{acceptance(run).mean_accepted_length:.2f} tokens per round · same text: {same}")

# %% [markdown]
# It is `ngram`, the method that needs no model at all, with n = 1. Then make it better: ask for *two* tokens that match.
#
# ## Break it
#
# One switch for each of eight faults. What breaks: the text, its law, the acceptance or the speed? Say it before you press **Run**. And which check would have told you?

# %%
from labkit.lab.breaking_panel import BreakIt

BreakIt(lab, prompt)

# %% [markdown]
# ## What if
#
# The speed-up model, with the points that were measured on the machine of the recordings below. Answer first; then move acceptance, drafted tokens, the price of a draft step, and the batch.

# %%
from labkit.gallery import gallery
from labkit.viz import Change, WhatIf

WhatIf(gallery.machine, ask=Change("draft_length", 3, 8))

# %% [markdown]
# ## Keep it, show it
#
# A run is a file: `trace.save("my-run.json.gz")`, and `Trace.load` opens it again, elsewhere too. These come with the lab. They need no model, not even torch; `gallery.play("code-eagle2")` is the short way to what follows:

# %% tags=["nbval-ignore-output"]
gallery

# %%
from labkit.viz import Note, Stepper

notes = [
    Note("A draft of three guesses: a tree, as sure as the numbers beside them say.", "tree"),
    Note("What was rejected is forgotten, and its slots are free.", "slots", phase="forget"),
    Note("Two lanes: this run, and plain decoding of the same tokens.", "timeline"),
]
name = "code-eagle2"
shown = Stepper(gallery.open(name), compare=gallery.plain(name), title=name, notes=notes)
shown.goto(round=5)
shown

# %% [markdown]
# ## Summary
#
# - Whatever drafts, a head, a person or a bad joke: the text is the target's.
# - A draft that somebody has looked at, and could have changed, must be judged as certain.
# - A fault shows in the text, the law, the acceptance or the speed. Look at all four.
# - A trace holds everything that you saw, and fits into a mail.
#
# ## What's next
#
# Back to any lesson, with a question of your own. [00 start here](00_start_here.ipynb) has the list.
