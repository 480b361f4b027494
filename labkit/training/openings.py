"""Beginnings of user turns, to steer what the target asks itself.

Owns: the list. Does not know: models.
Invariants: all of them are this project's own writing, and each ends where a topic has to follow.

Left alone, a chat model mostly asks for essays. A draft model trained on those accepts little on
code, arithmetic or lists, so variety is asked for by name.
"""

OPENINGS: tuple[str, ...] = (
    # code
    "Write a Python function that",
    "Here is a Python function. Explain step by step what it does:\n\ndef",
    "Find the mistake in this code and correct it:\n\n",
    "Show me how to use a dictionary in Python to",
    "Write a small JavaScript program that",
    "Write an SQL query that",
    "Complete this function:\n\ndef",
    "Write a shell command that",
    # arithmetic
    "A shop sells",
    "Anna has",
    "A train travels",
    "How much is",
    "If a recipe for four people needs",
    "Work this out step by step:",
    # questions
    "What is the difference between",
    "Why does",
    "How does a",
    "Who was",
    "When did",
    "Can you explain to a child what",
    "What happens when",
    "Is it true that",
    # lists
    "Give me a list of ten",
    "What are five good reasons to",
    "Name three",
    "Give me step-by-step instructions to",
    "Make a shopping list for",
    "Suggest some ideas for",
    # writing
    "Write a short story about",
    "Write a poem about",
    "Write a polite email to",
    "Write a diary entry of",
    "Describe a day in",
    "Write a short dialogue between",
    # rewriting
    "Summarise this text in two sentences:\n\n",
    "Correct the grammar of this sentence:",
    "Put this sentence into the past tense:",
    "Make this text shorter:\n\n",
    "Translate into French:",
    "Say this in a friendlier way:",
    # going on
    "Continue this text:\n\n",
    "Finish the sentence:",
)
