# %% [markdown]
# # 05 · Trees
#
# **You let the drafter hedge its bets, see the mask that keeps the branches apart, and find out how many guesses are worth their price.**
#
# {{badge}} · ⏱ 25 minutes · ●●○ medium · after lesson 04

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")
head = lab.drafter("eagle31").head

# %% [markdown]
# ## One wrong guess loses the rest
#
# So far a draft was a **chain**: one guess after the other. When the second guess fails, the third and fourth are lost with it.
# Often the drafter was not even surprised. It hesitated between two words, and had to choose one.
#
# The drafter of this lesson is an **EAGLE head**: a single small layer on top of the target. Lesson 06 opens it up. Here two things count: it guesses quickly, and it says how sure it is.
#
# Let it offer its *four* likeliest tokens for the next place, side by side.

# %%
from labkit.lab.quiz import ask

ask("05-hedge")

# %% tags=["nbval-check-output"]
from collections import Counter

from labkit.drafters.eagle import eagle_drafter
from labkit.drafters.shapes import StaticTree

prompt = "Tell me how bread is made, in a few sentences."
plain = lab.record(prompt, method="ar", max_new_tokens=32)

four = eagle_drafter(head, shape=StaticTree(((0,), (1,), (2,), (3,))))
run = lab.record(prompt, drafter=four, draft_length=1, max_new_tokens=32)
hits = Counter(r.verified.path[-1] for r in run.rounds if len(r.drafted.tokens) > 1)
for rank, name in enumerate(("none of the four", "likeliest", "second", "third", "fourth")):
    print(f"{name:16} {hits[rank]:2} of {hits.total()} rounds")
print("same text:", run.tokens == plain.tokens)

# %% [markdown]
# A chain holds one guess for this place, so it would have had the row *likeliest* only.
#
# ## A tree is two arrays
#
# Hedging at every place gives a **tree**. Node 0 is the pending token, every other node is a guess. Two arrays say everything: the **token** of each node, and its **parent**, the node that it follows.
#
# Here is a **static** tree: the same shape in every round, whatever the head thinks. A path such as (0, 1) means: the second likeliest token after the likeliest one.

# %% tags=["nbval-check-output"]
from labkit.drafters.shapes import SMALL_TREE
from labkit.metrics import hedged

print("paths:  ", *SMALL_TREE.choices)
print("parents:", *SMALL_TREE.parents)

static = eagle_drafter(head, shape=SMALL_TREE)
fixed = lab.record(prompt, drafter=static, draft_length=4, max_new_tokens=32, detail="full")
print("accepted:", sum(r.accepted for r in fixed.rounds), "in", len(fixed.rounds), "rounds")
print("of these, not in any chain of first choices:", hedged(fixed))

# %% [markdown]
# One round of it. The number in a box is the node; the value beside the sign is the head's **cumulative confidence**: the product of its own probabilities from the root down to this node.

# %%
from labkit.viz import draft_tree

# a round that accepted something else than first choices, which are nodes 1, 4, 7 and 9
best = max(fixed.rounds, key=lambda r: (len(set(r.verified.path) - {1, 4, 7, 9}), r.accepted))
number = best.index
draft_tree(fixed, round=number)

# %% [markdown]
# ## One forward, many branches
#
# All nodes go into *one* forward of the target. In it, tokens look at each other. Who may look at whom?

# %%
ask("05-mask")

# %% tags=["nbval-check-output"]
from labkit.tree import DraftTree

drafted = fixed.rounds[number - 1].drafted
tree = DraftTree(drafted.tokens, drafted.parents)
print(f"node depth  {'token':10}", *range(len(tree)))
for node, row in enumerate(tree.mask):
    word = repr(lab.token_text(tree.tokens[node]))
    seen = " ".join("■" if sees else "·" for sees in row)
    print(f"{node:3} {tree.depths[node]:5}  {word:11.11}", seen)

# %% [markdown]
# This matrix *is* the **tree attention mask**, row by row. Besides, every node sees all of the committed text. In a chain the filled part would be a full triangle.
#
# Positions go by **depth**, not by number: nodes 1, 2 and 3 are three candidates for the same place in the text, so all three stand at the same position.
#
# Does it work? Take each branch out of the tree, score it alone, as a chain, and compare with what the target said in the tree.

# %% tags=["nbval-check-output"]
done = sum(len(r.committed.tokens) for r in fixed.rounds[: number - 1])
target = lab.target
target.prefill([*fixed.prompt, *fixed.tokens[:done]])
with target.speculation():
    together = target.score(tree).logits
for leaf in tree.leaves:
    path = tree.path(leaf)
    with target.speculation():
        alone = target.score(DraftTree.chain([tree.tokens[node] for node in path])).logits
    gap = float((alone - together[list(path)]).abs().max())
    print("branch", *path, "· largest difference below 0.001:", gap < 0.001)

# %% [markdown]
# ### Leave it out
#
# The same head, the same way of drafting, the same accept rule. Only the mask is missing: each node sees *all* nodes before it, its rivals too. Say first what will break: the text, or only the acceptance?

# %% tags=["nbval-ignore-output"]
from labkit.lab.breaking_panel import BreakIt

panel = BreakIt(lab, prompt, only=("no_tree_mask",), drafter=static, max_new_tokens=20)
panel.run("no_tree_mask")
panel

# %% [markdown]
# Nothing complains, and acceptance may even *rise*: a text that has gone astray can be easy to guess. A node is judged after words that do not stand before it, and one that is accepted *keeps* what it saw: its keys and values go on speaking of a branch that is gone. Chains would never have shown it.
#
# ## Exercise: the mask
#
# ●●○ · 8 minutes
#
# Write the mask. `parents[i]` is the parent of node i, and −1 for the root. Return a list of rows; `rows[i][j]` is `True` when node i may look at node j.

# %%
from labkit.lab import checks


def mask(parents):
    raise NotImplementedError


checks.tree_mask(mask)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Every parent stands before its children. So when you come to node i, the row of its parent is finished: node i sees whatever its parent sees, and itself.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def mask(parents):
#     rows = []
#     for i, parent in enumerate(parents):
#         row = list(rows[parent]) if i else [False] * len(parents)
#         row[i] = True
#         rows.append(row)
#     return rows
# ```
#
# </details>
#
# ## Does the head know when it is right?
#
# A static tree spends its nodes in the same way in every round. It would be better to spend them where they have a chance. That needs a head whose confidence means something: of the guesses it gives 80 %, about 80 % should come true.
#
# To see this, many rounds are needed. A useful trick: at temperature 0 the text is the same *whoever drafts*. Once it is written, other drafters can **rehearse** on it. The drafter drafts as ever, and the known text judges, so the target need not work. The counts are those of a real run:

# %% tags=["nbval-check-output"]
from labkit.lab.rehearse import rehearse

again = rehearse(lab, plain, drafter=static, draft_length=4)
same = [a.verified.path for a in again.rounds] == [b.verified.path for b in fixed.rounds]
print("same verdicts as in the real run:", same)

questions = [
    "Explain what a rainbow is.",
    "Write a short letter to a teacher.",
    "What is 15 % of 80?",
]
texts = [lab.record(q, method="eagle31", max_new_tokens=24) for q in questions] + [plain]
print("tokens to rehearse on:", sum(len(text.tokens) for text in texts))

# %%
from labkit.metrics import acceptance, calibration
from labkit.viz import charts

wide = eagle_drafter(head, shape=StaticTree(((0,), (1,), (2,), (0, 0), (0, 1), (0, 0, 0))))
runs = [rehearse(lab, text, drafter=wide, draft_length=3) for text in texts]
charts.calibration({"EAGLE-3.1": calibration(*runs)})

# %% [markdown]
# On the line, the head is as sure as it should be. Below it, it promises too much. Either way: is a guess with more confidence accepted more often?
#
# ## The dynamic tree
#
# EAGLE-2 (Li et al. 2024) lets the tree grow by confidence, anew in every round. With k = 3 and N = 7:
#
# 1. **Expand**: the k likeliest tokens after the root. Give each of them its k likeliest children: k² candidates.
# 2. Of these k², only the **best k** by cumulative confidence grow on. Repeat for every depth.
# 3. **Rerank**: of *all* candidates, at all depths, keep the **N best**. That is the draft.
#
# Where the head is sure, the tree becomes long and thin; where it hesitates, short and wide. Here are all candidates of one round. (Computers add logarithms of probabilities; the order is the same.)

# %% tags=["nbval-check-output"]
from labkit.drafters.shapes import DynamicTree

growing = eagle_drafter(head, shape=DynamicTree(top_k=3, nodes=7))
grown = lab.record(prompt, drafter=growing, draft_length=3, max_new_tokens=32, detail="full")
most = max(grown.rounds, key=lambda r: (len(r.drafted.considered), r.accepted)).index
print("no after  token       confidence  node")
for i, (token, parent, sure, node) in enumerate(grown.rounds[most - 1].drafted.considered):
    kept = str(node) if node >= 0 else "pruned"
    if i:
        print(f"{i:2} {parent:5}  {lab.token_text(token)!r:13.13} {sure:8.3f}  {kept}")

# %%
ask("05-kept")

# %% [markdown]
# Now step through this round. The passages below the pictures belong to its steps: walk on, and each points at its part.

# %% tags=["nbval-ignore-output"]
from labkit.viz import Note, Stepper

says = {
    "draft": ("tree", "Kept candidates are boxes with a number; ✂ says how many were pruned."),
    "score": ("mask", "One row for each node. Nodes at the same depth never see each other."),
    "verify": ("tree", "Children are judged in order. Below a ✗ nothing is judged any more."),
    "commit": ("ribbon", "One path joins the text, and one token of the target's own."),
    "forget": ("slots", "The slots of all other branches are free again, wherever they lie."),
}
notes = [Note(words, part, phase=phase, round=most) for phase, (part, words) in says.items()]
shown = Stepper(grown, compare=plain, notes=notes)
shown.goto(round=most)
shown

# %% [markdown]
# With k = 1 a dynamic tree has no choice left: it is a chain.
#
# (With sampling there is one more difference. Chains and static trees are *drawn* from q, siblings without replacement, and judged by the rule of lesson 02. A dynamic tree takes the likeliest tokens and is judged as certain, q = 1: to choose among drawn tokens by their probability would bend the law.)
#
# ## How many nodes?
#
# More nodes, more chances. How many tokens does a round add with 1, 3, 7 and 31 nodes, at depth 4? Which number will be the *fastest* on your machine? Decide before you run on.

# %%
my_guess = None  # 1, 3, 7 or 31

# %% tags=["nbval-check-output"]
sizes = (1, 3, 7, 31)
trials = {}
for n in sizes:
    drafter = eagle_drafter(head, shape=DynamicTree(top_k=4, nodes=n))
    trials[n] = [rehearse(lab, text, drafter=drafter, draft_length=4) for text in texts]
counts = {n: acceptance(*trials[n]) for n in sizes}
for n, c in counts.items():
    nodes = "node, " if n == 1 else "nodes,"
    length = f"{c.mean_accepted_length:.2f} ± {c.standard_error:.2f} tokens per round"
    print(f"{n:2} {nodes} {c.rounds:3} rounds · {length} · {c.rate:4.0%} of the guesses accepted")

# %% [markdown]
# (The last column must fall: of all guesses at one depth, at most one can be accepted. The ± says how far the mean may be off because the rounds are few; lesson 06 comes back to it.)

# %%
ask("05-faster")

# %% [markdown]
# Now the price. One step of plain decoding, a forward with one token, is the unit. Measured on your machine:
#
# - **verifying** n nodes takes a forward with n + 1 tokens;
# - **drafting** takes the forwards of the head, one for each depth. It grows all its levels *before* it knows which nodes stay, so drafting costs nearly the same for every N.
#
# $$\text{speed} = \frac{\text{tokens that a round adds}}{\text{drafting} + \text{verifying}}$$

# %% tags=["nbval-ignore-output"]
from labkit.cost import Budget
from labkit.lab.measure import tree_costs
from labkit.metrics import cost
from labkit.viz.budgets import budget_chart

costs = tree_costs(lab, growing, repeats=3)
step = costs.of(1)  # seconds of a single-token step
budget = Budget(
    tokens={n: c.mean_accepted_length for n, c in counts.items()},
    draft={n: cost(*trials[n]).draft / c.rounds / step for n, c in counts.items()},
    verify={n: costs.of(n + 1) / step for n in sizes},
)
budget_chart(budget)

# %% tags=["nbval-ignore-output"]
from labkit.lab.quiz import compare

compare(my_guess, budget.fastest, unit="nodes were fastest")

# %% [markdown]
# ## Let the cost decide
#
# Confidence says what a node is worth: its chance of being accepted. The measured times say what it costs. So each round can keep just the nodes that pay: the N with the most *expected tokens per second*.

# %% tags=["nbval-ignore-output"]
sized = eagle_drafter(head, shape=DynamicTree(top_k=3, nodes=15, costs=costs))
found = [rehearse(lab, text, drafter=sized, draft_length=3) for text in texts]
nodes = Counter(len(r.drafted.tokens) - 1 for trace in found for r in trace.rounds)
for n in sorted(nodes):
    print(f"{n:2} nodes in {nodes[n]:2} rounds", "█" * nodes[n])

# %% [markdown]
# Drafting can end early too: **stop when the head is no longer sure**, that is, when even its likeliest path falls below a threshold. Then no forward of the head is spent on guesses that will hardly count. (The published code of EAGLE has such a threshold, and never reads it. Here it works.) With chains of at most 5:

# %% tags=["nbval-check-output"]
from labkit.drafters.shapes import Chain

for threshold in (0.0, 0.2, 0.6):
    shy = eagle_drafter(head, shape=Chain(), confidence=threshold)
    c = acceptance(*[rehearse(lab, text, drafter=shy, draft_length=5) for text in texts])
    print(f"stop below {threshold:.1f} · {c.drafted_per_round:.1f} guesses per round", end="")
    print(f" · {c.accepted / max(1, c.drafted):4.0%} accepted", end="")
    print(f" · {c.mean_accepted_length:.2f} tokens per round")

# %% [markdown]
# Fewer guesses, and a larger share of them good. What is lost is the rare long hit.
#
# ## On the clock
#
# No rehearsal now: a race. Plain decoding, the tree with most nodes, and the tree that minds its costs write the same text for real. Which will cross the line first? (**Start** runs it again; the replay is at true speed.)

# %% tags=["nbval-ignore-output"]
from labkit.lab.race import Race

large = eagle_drafter(head, shape=DynamicTree(top_k=4, nodes=31))
trees = {"31 nodes": large, "sized by cost": sized}
race = Race(lab, prompt, tuple(trees), drafters=trees, draft_length=4, max_new_tokens=24)
race.run()
race

# %% [markdown]
# **More accepted is not always faster.** Acceptance asks for more nodes, and price for fewer. Whoever tells you the accepted length alone tells you half.
#
# How much of a tree pays depends on the machine. On two processor cores a forward with 32 tokens takes noticeably longer than one with a single token: you measured it. On a large GPU with one user it hardly does, and the trees in the EAGLE papers have about 60 nodes. With many users the GPU is busy anyway, and trees shrink again (move the sliders of lesson 12).
#
# ## Summary
#
# - A draft is a **tree**: tokens and parents. A chain is a tree without branches.
# - One forward scores all branches. The **mask** lets a node see the text, its ancestors and itself; its position is its depth.
# - A **static** tree has one shape. A **dynamic** tree (EAGLE-2) grows where the head is sure: expand the best k of k² at each depth, keep the N best by cumulative confidence.
# - No branch may be accepted beside another: a tree buys chances, and pays for every node.
# - Size it by measured cost, or stop at a confidence. The text is the same in every case.
#
# ## What's next
#
# [06 the EAGLE family](06_the_eagle_family.ipynb): what is in this head, and why it guesses better than its size suggests.
