"""One file for each panel: a story and a state in, a scene out.

Owns: nothing of its own. Does not know: which panels stand side by side.
"""
