# %% [markdown]
# # 04 · KV slots and rollback
#
# **You see the model's memory as a table of slots, watch wrong guesses being forgotten, and break it on purpose.**
#
# {{badge}} · ⏱ 20 minutes · ●●○ medium · after lesson 02

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")

# %% [markdown]
# ## What is remembered
#
# In every attention layer, each token looks at the tokens before it. What it looks at are two rows of numbers per token: its **keys** and **values**. They never change once computed, so they are kept: the **KV cache**.

# %% tags=["nbval-check-output"]
c = lab.model.config
numbers = 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim
print(f"{numbers:,} numbers for each token, {4 * numbers:,} bytes in 32 bits each")

# %% [markdown]
# Thanks to the cache, a round computes only its new tokens: the pending one and the guesses. Without it, every forward would compute the whole text again.

# %% tags=["nbval-check-output"]
prompt = "Give me eight ideas for a birthday present for a ten-year-old."
plain = lab.record(prompt, method="ar", max_new_tokens=32)
trace = lab.record(prompt, method="draft", draft_length=4, max_new_tokens=32, detail="full")

new = sum(len(r.scored.node_slots) for r in trace.rounds)
again = sum(r.scored.context for r in trace.rounds)
print("positions computed with the cache:  ", new)
print("positions it would take without one:", new + again)

# %% [markdown]
# ## A table of slots
#
# Think of the cache as a table. Each row, a **slot**, holds the keys and values of one token, and knows the token's position in the text.
# A forward *writes* the new tokens into free slots, and they are **speculative** until the verdict. Then
#
# - slots of accepted tokens are **committed**: they stay;
# - slots of rejected tokens are **forgotten**: they become free. This is **rollback**.
#
# Nothing is moved, copied or wiped. A free slot is simply one that nobody may look at any more.
#
# Watch [the slots](#labkit-slots) in a round that keeps something and rejects something: step back with ←, and then on with → until the next round has written.

# %% tags=["nbval-ignore-output"]
from labkit.viz import Note, Stepper

notes = [
    Note("The forward has written these. No verdict yet: speculative.", "slots", phase="score"),
    Note("Two kinds stay: of the pending token, of accepted ones.", "slots", phase="commit"),
    Note("Forgotten. They are free for the next round.", "slots", phase="forget"),
    Note("The target's own token: in the text, and in no slot.", "ribbon", phase="forget"),
]
stepper = Stepper(trace, compare=plain, notes=notes)
stepper.goto(round=next(r.index for r in trace.rounds if r.accepted and r.committed.freed_slots))
stepper

# %% [markdown]
# The same in numbers. Watch what becomes of forgotten slots in the next round.

# %% tags=["nbval-check-output"]
for r in trace.rounds[:6]:
    print("round", r.index)
    print("   written  ", list(r.scored.node_slots))
    print("   kept     ", list(r.committed.kept_slots))
    print("   forgotten", list(r.committed.freed_slots))

# %%
from labkit.lab.quiz import ask

ask("04-slots")

# %% [markdown]
# So there is a rule that always holds between rounds: **the cache holds every token of the text except the last one**, which is pending.
#
# Here is the source that does it. To keep some slots is to note their numbers.

# %%
from labkit.cache import SlotTable
from labkit.lab.show import show

show(SlotTable.keep)

# %% [markdown]
# ## Go back
#
# When you may forget slots, you may also forget whole rounds. Here the text stands after four rounds, and then goes back to round 2.
# Predict: how many slots does round 3 write when you press **Whole round**, and into which? What had to be computed again?

# %%
from labkit.lab import live

bench = live.open(lab, prompt, method="draft", draft_length=4, max_new_tokens=32, slots=True)
bench.run(4)
bench.rewind(2)
bench

# %% [markdown]
# The target computed nothing again (its drafter, which was reset, reads the text once more). The slots of rounds 3 and 4 were free at once, and the new round took the very same ones. Change a guess before **Verify**: it gets a slot like any other, and loses it if the target disagrees.
#
# ## Break it
#
# What if nobody forgets? This is the classic fault of home-made speculative decoding.

# %%
ask("04-predict")

# %% tags=["nbval-ignore-output"]
from labkit.lab.breaking_panel import BreakIt

faults = ("no_rollback", "reset", "stale_positions")
panel = BreakIt(lab, prompt, only=faults, max_new_tokens=32)
panel.run("no_rollback")
panel

# %% [markdown]
# The cache now holds more tokens than the text. Later tokens read words that were never written, and stand at later positions than they should.
#
# Compare this with lesson 02: a fault in the *drafter* only costs acceptance. This fault sits in the *target*, the judge itself, and nothing protects the text from it. The lab's tests therefore compare every kind of run with plain decoding, token by token.
#
# Another home-made way: after each round, empty the cache and compute the whole text again.

# %%
ask("04-reset")

# %% [markdown]
# Switch to *Reset instead of rollback* and run it. Right, and wasteful: compare the positions computed. The waste grows with the square of the length of the text.
#
# The third switch is the hardest to find: the slots are perfect, and the text is wrong. Which check sees it?
#
# ## A tree in the table
#
# A drafter may hedge: several guesses for the same place. Then the draft is a **tree**, and only one of its paths can stay (lesson 05).
# Here is such a draft, with a script for a drafter. The script knows the answer, because we want to look at slots and not at guessing. Each round offers two branches, a wrong one first:
#
# ```
# pending ─┬─ wrong ── wrong        nodes 1 and 3
#          └─ right ── right        nodes 2 and 4
# ```

# %%
from labkit.draft import Draft
from labkit.drafters.scripted import Scripted
from labkit.tree import DraftTree

wrong = lab.tokens(" banana", chat=False)[0]


def two_branches(text, rng, depth):
    done = len(text) - len(plain.prompt)
    right = plain.tokens[done : done + 2]
    if depth < 2:
        return Draft.deterministic(DraftTree((text[-1],), (-1,)))
    nodes = (text[-1], wrong, right[0], wrong, right[1])
    return Draft.deterministic(DraftTree(nodes, (-1, 0, 0, 1, 2)))


# %% [markdown]
# One forward scores both branches. In it, a token sees the text and its own ancestors, not the other branch.
# Predict: which slots will round 1 keep? Which numbers does round 2 get?

# %% tags=["nbval-check-output"]
forked = lab.record(prompt, drafter=Scripted(two_branches), max_new_tokens=12)
for r in forked.rounds[:3]:
    print("round", r.index, "· nodes in slots", list(r.scored.node_slots))
    print("   path", list(r.verified.path), "· kept", list(r.committed.kept_slots))
print("same text:", forked.tokens == plain.tokens[:12])
print("slots of the last 8 tokens, in the order of the text:", lab.target.committed_slots[-8:])

# %%
from labkit.viz import kv_slots

kv_slots(forked, round=2)

# %% [markdown]
# The kept path lies scattered, and the numbers do not rise with the text. It does not matter: each key carries its position in itself, and the mask says who may look at whom. So a branch is kept *without copying anything*.
#
# ## Exercise: after a round
#
# ●●○ · 6 minutes
#
# Do the bookkeeping yourself. You get
#
# - `committed`: the slots of the cached tokens, in the order of the text;
# - `node_slots`: the slot of each node of this round's draft (node 0 is the pending token);
# - `path`: the accepted nodes, from node 0 on.
#
# Return two lists: the slots of all cached tokens after the round, and the freed slots (in the order of the nodes).

# %%
from labkit.lab import checks


def after_round(committed, node_slots, path):
    raise NotImplementedError


checks.after_round(after_round)

# %% [markdown]
# <details><summary>Hint</summary>
#
# `path` holds *nodes*; `node_slots[node]` is the slot of a node. The target's own token of this round has no slot yet.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def after_round(committed, node_slots, path):
#     kept = [node_slots[node] for node in path]
#     freed = [slot for slot in node_slots if slot not in kept]
#     return committed + kept, freed
# ```
#
# The length of the cache afterwards is `len(committed) + len(path)`.
#
# </details>
#
# ## Summary
#
# - The KV cache is a table of **slots**, one per token. With it, a round computes only its own tokens.
# - **Rollback** is forgetting slots, and keeping a branch of a tree is keeping slots. Nothing is copied, and freed slots are used again.
# - Between rounds the cache holds all tokens but the last.
# - Without rollback the *target* reads what was never written, and the text changes. With a reset instead, the text is right and the work is lost.
# - Not every model can forget: layers with a running state (recurrent, linear attention) mix all tokens into one. The lab takes a snapshot of them before each draft, and afterwards reads the accepted tokens again.
#
# ## What's next
#
# [05 trees](05_trees.ipynb): which branches are worth drafting.
