"""Keep transformers' progress bars and advice out of notebooks while a model loads.

Owns: the two switches, put back on leaving.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No bars and no warnings from transformers inside; as before afterwards."""
    bars = logging.is_progress_bar_enabled()
    level = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
