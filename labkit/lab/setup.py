"""The first cells of every notebook.

Owns: the public address of the repository (here and nowhere else), the set-up cell's text, and what
``labkit.setup()`` prints.
Does not know: what a lesson teaches.
Invariants: the same cell works in JupyterLab, on Colab and under test; where the package is
installed it installs nothing.
"""

import importlib
import importlib.util
import sys

from labkit import __version__

# Set at publication. A tag, not a branch, so that a saved notebook finds the code it was made with.
OWNER_AND_NAME = "OWNER/speculative-decoding-lab"
TAG = f"v{__version__}"

_COLAB = "https://colab.research.google.com"


def colab_badge(notebook: str) -> str:
    """Markdown that opens a notebook on Colab; ``notebook`` as in ``notebooks/01_x.ipynb``."""
    link = f"{_COLAB}/github/{OWNER_AND_NAME}/blob/{TAG}/{notebook}"
    return f"[![Open in Colab]({_COLAB}/assets/colab-badge.svg)]({link})"


def setup_cell(lang: str = "en") -> str:
    """Source of the set-up cell, which installs the package where it is missing."""
    argument = "" if lang == "en" else f'lang="{lang}"'
    address = f"labkit @ git+https://github.com/{OWNER_AND_NAME}@{TAG}"
    return "\n".join(
        (
            "import importlib.util",
            'if importlib.util.find_spec("labkit") is None:',
            f'    %pip install -q "{address}"',
            "import labkit",
            f"labkit.setup({argument})",
        )
    )


def setup(*, lang: str = "en") -> None:
    """Make the notebook ready and print one line: mode, device, dtype, model.

    Without torch, recorded traces can still be replayed; the line says so. The model itself is
    fetched by the first ``load_model()``.
    """
    _enable_colab_widgets()
    print(_line(lang))  # noqa: T201 - a notebook's own output


def _line(lang: str) -> str:
    replay, ready, absent = {
        "fr": ("relecture de traces (torch n'est pas installé)", "prêt", "sera téléchargé"),
    }.get(lang, ("replay of recorded traces (torch is not installed)", "ready", "to be fetched"))
    head = f"labkit {__version__}"
    if importlib.util.find_spec("torch") is None:
        return f"{head} · {replay}"
    # torch is wanted from here on, and only here.
    from labkit.devices import device_label, dtype_name, resolve_device, resolve_dtype
    from labkit.lab.presets import DEFAULT, find
    from labkit.lab.pull import folder_of

    device = resolve_device()
    dtype = dtype_name(resolve_dtype("auto", device))
    preset = find(DEFAULT)
    state = absent if folder_of(preset) is None else ready
    return f"{head} · {device_label(device)} · {dtype} · {preset.title} ({state})"


def _enable_colab_widgets() -> None:
    # Colab shows third-party widgets only when asked to; elsewhere the module does not exist.
    if "google.colab" in sys.modules:
        importlib.import_module("google.colab.output").enable_custom_widget_manager()
