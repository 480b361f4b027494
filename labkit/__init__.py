"""Speculative Decoding Lab.

Owns: the version, and the lazy name ``setup`` that notebooks call first.
Does not know: torch. Importing this package loads none of it, so recorded traces replay without it.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "setup"]

if TYPE_CHECKING:
    from labkit.lab.setup import setup


def __getattr__(name: str) -> Any:
    if name == "setup":
        # An upward import, so only on first use: level 8 must not be loaded by `import labkit`.
        import importlib

        return importlib.import_module("labkit.lab.setup").setup
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
