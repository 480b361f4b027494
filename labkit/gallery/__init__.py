"""Recorded runs that open without torch and without a model: replay mode.

    from labkit.gallery import gallery

    gallery                           a table of what there is
    gallery.open("code-eagle3")       a Trace, for every picture of labkit.viz
    gallery.play("code-eagle3")       a stepper, beside plain decoding of the same prompt
    gallery.machine                   forward times and runs for labkit.viz.WhatIf
    gallery("a_folder")               the same for someone else's recordings

Owns: the name ``gallery``. Does not know: how runs are recorded (`labkit.gallery.recording`, which
alone needs torch).
"""

from labkit.gallery.shelf import Gallery, gallery

__all__ = ["Gallery", "gallery"]
