# %% [markdown]
# # 09 · Multi-token prediction
#
# **You compare heads that guess side by side with a module that guesses step by step, run both wrongly without anybody noticing, roll back a memory that cannot forget, and see high acceptance lose.**
#
# {{badge}} · ⏱ 30 minutes · ●●● demanding · after lesson 06

# %% tags=["setup", "nbval-ignore-output"]
import labkit

labkit.setup()

# %% tags=["nbval-ignore-output"]
from labkit.lab.session import open_lab

lab = open_lab(dtype="float32")
module = lab.drafter("mtp").head

# %% [markdown]
# ## Two ways to look further ahead
#
# A language model is trained to foresee *one* token. What if it practised to foresee several? That is **multi-token prediction**, MTP. Many models that were published since 2025 bring parts for it in their own files. There are two ways to build them.
#
# - **Parallel heads** (Gloeckle et al. 2024; Medusa, Cai et al. 2024): head 0 guesses the next token but one, head 1 the one after it, and so on. All read the same last state.
# - **Sequential modules** (DeepSeek-V3, 2024): a module reads a state *and a token*, and gives a state; from this one the next module goes on, or the same module again (FastMTP, 2025).

# %%
from labkit.viz.ahead import guessing

guessing()

# %% [markdown]
# x3 is the pending token. Solid boxes are known, dotted ones are guesses.
#
# The lower half may look familiar: it is the pair of lesson 06, state and token. A DeepSeek-style module is an EAGLE head that grew up with its model.

# %%
from labkit.lab.quiz import ask

ask("09-parallel")

# %% [markdown]
# Try it. Both drafters offer three *different* first guesses, and one second guess behind each of them. The target says what it would have written there.

# %% tags=["nbval-check-output"]
from labkit.drafters.shapes import StaticTree

three = StaticTree(((0,), (1,), (2,), (0, 0), (1, 0), (2, 0)))
prompt = "Name three colours of the rainbow."
for name, method in {"parallel": "medusa", "MTP": "mtp"}.items():
    drafter = lab.new_drafter(method, shape=three)
    run = lab.record(prompt, drafter=drafter, draft_length=2, max_new_tokens=3, detail="full")
    drafted, scored = run.rounds[0].drafted, run.rounds[0].scored
    print(f"{name:9} first guess    then           the target's choice")
    for node in (4, 5, 6):
        parent = drafted.parents[node]
        words = drafted.tokens[parent], drafted.tokens[node], scored.p_top[parent][0][0]
        print(f"{'':9}", *(f"{lab.token_text(word)!r:14}" for word in words))

# %% [markdown]
# ## Depth two is harder than depth one

# %%
ask("09-depth")

# %% [markdown]
# Some text, written once; both drafters rehearse on it (lesson 05), four deep:

# %% tags=["nbval-check-output"]
from labkit.drafters.mtp import mtp_drafter
from labkit.drafters.shapes import Chain
from labkit.lab.rehearse import rehearse
from labkit.metrics import acceptance, acceptance_by_depth

questions = ["Why do cats purr?", "Write a Python function that reverses a list."]
texts = [lab.record(question, method="mtp", max_new_tokens=32) for question in questions]
mtp = mtp_drafter(module)
both = {"parallel heads": lab.new_drafter("medusa", shape=Chain()), "MTP module": mtp}
runs = {n: [rehearse(lab, t, drafter=d, draft_length=4) for t in texts] for n, d in both.items()}
for name, some in runs.items():
    n = acceptance(*some)
    told = f"{n.mean_accepted_length:.2f} ± {n.standard_error:.2f} tokens per round"
    print(f"{name:15} {told} · {n.rounds:3} rounds")

# %%
from labkit.viz import charts

charts.acceptance_by_depth({name: acceptance_by_depth(*some) for name, some in runs.items()})

# %% [markdown]
# Bars further right rest on fewer rounds: look at the table below the chart. And mind who gets there: a bar counts only drafts that were right so far, and those stand at *easy places* of the text. So bars may even rise. Compare the two drafters at one depth.
#
# The two differ in size and in training, so this alone does not say what the *reading of guesses* is worth. A cleaner test takes it away from the very same module: from its second guess on it reads the last known token again, never its own guess. (It was trained with the guess. So this shows what it uses, not how good it could become without.)

# %% tags=["nbval-check-output"]
from labkit.lab import faults

unheard = faults.drafter(lab, "guess_unheard", head=module)
without = [rehearse(lab, text, drafter=unheard, draft_length=4) for text in texts]
for name, some in {"as trained": runs["MTP module"], "guess unheard": without}.items():
    told = [f"{d.accepted}/{d.reached}" for d in acceptance_by_depth(*some)]
    print(f"{name:14} accepted/reached at depth 1, 2, ...:", *told)

# %% [markdown]
# Depth one is untouched: it reads a true state and a true token. What comes after it depends on the word that was guessed.
#
# ## One part, many dialects
#
# DeepSeek, Qwen, GLM and MiMo all ship such a module. It is one small part, and each family builds it a little differently. The lab keeps the differences in one table, shown here as the code has it:

# %%
from labkit.lab.families import families

families()

# %% [markdown]
# Names can be checked: a name that is missing is an error. The other columns cannot. A projection takes [state, token] as gladly as [token, state].
#
# Before you run the next cell: three switches of the table will be set wrongly, one at a time. Will the text change? Which will cost most?

# %% tags=["nbval-ignore-output"]
keys = ["concat_reversed", "other_side_of_the_norm", "recycled_unnormed"]
faults.measure(lab, questions[:1], keys=keys, method="mtp", max_new_tokens=20)

# %% [markdown]
# The text stays, whatever you do to the head. What a switch costs depends on the weights that were trained with it. The order of the halves ruins everything. The side of the norm is milder on a small head whose norms are close to 1: the state is normed again on the way in. It is not milder everywhere: for Qwen3.5-0.8B, LightLLM reports 1.80 tokens per round on the wrong side and 2.74 on the right one (PR #1402). With few texts, small differences are noise. (`faults.catalogue(faults.MODULES)` lists all faults that the lab knows of this family, and who had them.)
#
# ## A memory that cannot forget
#
# Qwen3.5, the smallest family with such a module, has one more surprise. Three of four of its layers are not attention. They are **recurrent**: they keep one state of fixed size and fold every token into it. That makes long texts cheap. And rollback?

# %%
ask("09-state")

# %%
from labkit.viz.ahead import remembering

remembering(["t8", "t9"], ["t10", "a", "b", "c"], accepted=1)

# %% [markdown]
# A tiny model of that kind, with random weights: two recurrent layers and one of attention. First: a draft that nobody commits. Then every verdict on a draft of four, against a plain run that reads one token at a time.

# %% tags=["nbval-check-output"]
from labkit.lab.recall import forgets, hybrid, recall

model = hybrid()
text, draft = [3, 17, 40, 5, 22, 61, 9], [5, 6, 7, 8]
print("after a draft that nobody kept, bit for bit the same:", forgets(model, text, draft))
print("accepted  read again  off by less than 0.00001  not restored: off by more than 0.1")
for row in recall(model, text, draft):
    spoilt = row.spoilt > 0.1
    print(f"{row.accepted:8} {row.read_again:11}  {row.gap < 1e-5!s:25} {spoilt}")

# %% [markdown]
# The copy is exact, to the bit. What was read again may differ in the last digits, because blocks and single tokens are computed in another order (lesson 03).
#
# ## Exercise: what is read again
#
# ●●○ · 5 minutes
#
# A round drafted `drafted` tokens, and `accepted` of them stay. How many tokens must the recurrent layers read a second time? Look at the table above, and at the last row of it.

# %%
from labkit.lab import checks


def read_again(drafted, accepted):
    raise NotImplementedError


checks.read_again(read_again)

# %% [markdown]
# <details><summary>Hint</summary>
#
# The kept state is from before the draft. The pending token went into the forward too.
#
# </details>
# <details><summary>Solution</summary>
#
# ```python
# def read_again(drafted, accepted):
#     return 0 if accepted == drafted else accepted + 1
# ```
#
# </details>
#
# ## High acceptance that is still slower

# %%
ask("09-slower")

# %% [markdown]
# A drafter with perfect guesses is easy to have: let the target draft for itself. Both write three guesses a round. Who wins?

# %% tags=["nbval-ignore-output"]
from labkit.drafters.draft_model import DraftModel
from labkit.lab.race import Race

itself = DraftModel(lab.model, vocab_size=lab.target.vocab_size)
lanes = {"the target itself": itself, "MTP": mtp_drafter(module)}
race = Race(lab, prompt, tuple(lanes), drafters=lanes, draft_length=3, max_new_tokens=24)
race.run()
race

# %% [markdown]
# Every guess of the target itself is right, and it loses: three of its own steps and a forward of four tokens make four tokens.
#
# It need not be that plain. The parallel heads cost one small forward, however many guesses you take from them. So take more: a tree of 3 nodes or one of 7, grown from the same candidates. In no round can the larger tree accept less. Is it faster?

# %% tags=["nbval-ignore-output"]
from labkit.drafters.shapes import DynamicTree

shapes = {f"tree of {n}": DynamicTree(top_k=3, nodes=n) for n in (3, 7)}
trees = {name: lab.new_drafter("medusa", shape=shape) for name, shape in shapes.items()}
race = Race(lab, questions[1], tuple(trees), drafters=trees, draft_length=4, max_new_tokens=48)
race.run()
race

# %% [markdown]
# On the machine of the lab's table in the README (two cores; 8 prompts, 128 tokens each) the tree of 7 (4 deep) accepted more, 1.66 tokens per round against 1.53 for 3 nodes (2 deep), and lost: 0.97 × plain decoding against 1.19 ×. Up to four tokens in a forward cost hardly more than one there, and a fifth makes it half as dear again.
#
# Such things happen in production too. For Qwen3.5-0.8B a user of vLLM reports 96.6 % of guesses accepted, and 128 tokens per second in place of 342 (issue #39680). The target is so small that a draft step is not cheap *beside it*.
#
# What makes a draft step dear? One layer of the target's size, and the scores for all words it knows:

# %% tags=["nbval-ignore-output"]
from labkit.lab.measure import step_parts

parts = step_parts(lab, mtp_drafter(module))
print(f"one step of the target               {1000 * parts.target:6.1f} ms")
print(f"one draft step                       {1000 * parts.draft:6.1f} ms", end="")
print(f"  ({parts.draft / parts.target:.0%} of it)")
print(f"  of which scores for {parts.words:6,} words {1000 * parts.output:6.1f} ms")
print(f"  scores for every word would take   {1000 * parts.all_words:6.1f} ms")

# %% [markdown]
# Our head says 8,192 words of 49,152. A native module uses the target's whole output layer: in Qwen3.5-0.8B it has about 20 million weights of its own, and the shared output layer 254 million. Most of a draft step is then spent on words that are never guessed.
#
# So how long should a chain be? Tokens that a round adds, against what it costs here:

# %% tags=["nbval-ignore-output"]
from labkit.cost import Budget
from labkit.lab.measure import forward_seconds
from labkit.viz.budgets import budget_chart

lengths = (1, 2, 3, 4)
seconds = forward_seconds(lab, (1, *(k + 1 for k in lengths)), repeats=5)
tried = {k: [rehearse(lab, t, drafter=mtp, draft_length=k) for t in texts] for k in lengths}
budget = Budget(
    tokens={k: acceptance(*some).mean_accepted_length for k, some in tried.items()},
    draft={k: k * parts.draft / seconds[1] for k in lengths},
    verify={k: seconds[k + 1] / seconds[1] for k in lengths},
)
budget_chart(budget, chain=True)

# %% [markdown]
# ## In the wild
#
# | model | what it ships | reported by its authors or users |
# |---|---|---|
# | DeepSeek-V3 | 1 module, used once or again | the second token right 85 to 90 % of the time |
# | Qwen3.5 | 1 module, hybrid target | 0.8B: 1.80 or 2.74 tokens per round, by the side of the norm |
# | GLM-4.6 | 1 module | 2.0 to 2.1 tokens per round (SGLang #14457) |
# | MiMo-7B | 1 module, state first, before the norm | about 90 % at one token |
# | FastMTP on MiMo-7B | the same module, trained to be used again | 2.03× in place of what plain reuse gives |
#
# None of these numbers is ours. With a GPU and a network, `open_lab("qwen3.5-0.8b")` or `open_lab("mimo-7b")` and `method="mtp"` let you measure your own.
#
# ## Summary
#
# - **Parallel heads** guess all depths at once from one state. None knows what the others guessed.
# - A **sequential module** reads its last guess, which pays from depth two on, and costs one step for each depth.
# - Depth two is harder for both: the target has no state there yet. Since only easy places get so far, the rates by depth can hide it.
# - Families differ in order, norms and what is handed on. **A wrong choice leaves the text alone**, and costs from nothing to everything.
# - A slot can be forgotten. A **recurrent state** cannot: keep a copy, go back, read again what stays. Chains only.
# - Acceptance is half of the story: a draft step must be cheap *beside a step of its target*, and so must every node that is verified.
#
# ## What's next
#
# [12 playground](12_playground.ipynb): drafts that you edit, a drafter that you write, rules that you break.
