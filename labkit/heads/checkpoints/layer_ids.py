"""Which states of the target a list of layer ids means.

Owns: the two conventions and how one is chosen. Does not know: tensors, measuring.
Invariants: the boundaries that come out count layers ("after k layers"); where the file allows two
readings both are kept, likeliest first.

    ids in the file        2   16   29         1   15   28        of a target with 32 layers
    read as boundary       2   16   29         1   15   28
    read as layer_output   3   17   30         2   16   29        output of layer i: after i + 1

Boundary L, of a target with L layers, is the residual stream before the final norm;
transformers' ``hidden_states[L]`` is the same after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.errors import BadInput
from labkit.heads.checkpoints.files import broken
from labkit.heads.checkpoints.layouts import (
    BOUNDARY,
    CONVENTIONS,
    LAYER_OUTPUT,
    Layout,
    section,
)
from labkit.heads.checkpoints.records import UNSETTLED
from labkit.heads.eagle import default_boundaries
from labkit.ids import whole_numbers

KEY = "eagle_aux_hidden_state_layer_ids"
PLACES = ("", "eagle_config", "transformer_layer_config")


@dataclass(frozen=True)
class LayerIds:
    """Ids as stored, and the boundaries that they may mean, likeliest first."""

    stored: tuple[int, ...] | None
    found_in: str
    readings: tuple[tuple[str, tuple[int, ...]], ...]
    decided_by: str
    suspicious: tuple[str, ...] = ()


def stored_ids(path: Path, config: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, str, str]:
    """The list in the config, where it is, and a doubt about it ("" when there is none).

    Raises:
        BadCheckpoint: not a list of distinct numbers from 0.
    """
    found: dict[str, tuple[int, ...]] = {}
    for place in PLACES:
        if (value := section(config, place).get(KEY)) is None:
            continue
        name = f"{place}.{KEY}" if place else KEY
        expected = f"distinct numbers from 0 in {name}"
        try:
            ids = whole_numbers(value)
        except TypeError as error:
            raise broken(path, expected=expected, got=str(error)) from error
        if not ids or min(ids) < 0 or len(set(ids)) != len(ids):
            raise broken(path, expected=expected, got=str(list(ids)))
        found[name] = ids
    if not found:
        return None, "", ""
    name, ids = next(iter(found.items()))
    doubt = ""
    if len(set(found.values())) > 1:
        doubt = "; ".join(f"{key} says {list(value)}" for key, value in found.items())
        doubt = f"two lists of layer ids: {doubt}; the first one is read"
    elif list(ids) != sorted(ids):
        doubt = f"layer ids {list(ids)} are not ascending; states are joined in this order"
    return ids, name, doubt


def decide(
    path: Path,
    config: Mapping[str, Any],
    layout: Layout,
    *,
    fused: int,
    convention: str | None,
    target_layers: int | None,
) -> LayerIds:
    """Choose a reading.

    Args:
        fused: states that the head's ``fc`` takes.
        convention: what the caller knows better; None: decide here.
        target_layers: L; None: not known yet.

    Raises:
        BadInput: an unknown convention. BadCheckpoint: ids that no reading makes possible, or
            none for a head that does not take the usual three states.
    """
    if convention not in (None, *CONVENTIONS):
        raise BadInput(
            "layer-id convention",
            expected=" or ".join(CONVENTIONS),
            got=repr(convention),
            next_step="choose one of these",
        )
    ids, place, doubt = stored_ids(path, config)
    if ids is None:
        return _usual(path, fused, target_layers)
    possible = {
        name: bounds
        for name, bounds in ((BOUNDARY, ids), (LAYER_OUTPUT, tuple(i + 1 for i in ids)))
        if target_layers is None or max(bounds) <= target_layers
    }
    if convention is not None:
        possible = {name: bounds for name, bounds in possible.items() if name == convention}
    if not possible:
        raise broken(
            path,
            expected=f"layer ids within the target's {target_layers} layers",
            got=f"{list(ids)}",
            next_step="use the target that this head was trained for",
        )
    order, why = _order(config, layout, ids, possible, told=convention, layers=target_layers)
    doubts = tuple(filter(None, (doubt, _at_the_end(possible[order[0]], target_layers))))
    return LayerIds(ids, place, tuple((name, possible[name]) for name in order), why, doubts)


def _usual(path: Path, fused: int, target_layers: int | None) -> LayerIds:
    if fused != 3:
        raise broken(
            path,
            expected=f"{KEY} in the config of a head that fuses {fused} states",
            got="none",
            next_step="add the ids that it was trained with to config.json",
        )
    bounds = (UNSETTLED,) * 3 if target_layers is None else default_boundaries(target_layers)
    why = "no ids in the file: the usual 2, L // 2, L - 3, which every convention agrees on"
    return LayerIds(None, "", ((BOUNDARY, bounds),), why)


def _order(
    config: Mapping[str, Any],
    layout: Layout,
    ids: tuple[int, ...],
    possible: Mapping[str, tuple[int, ...]],
    *,
    told: str | None,
    layers: int | None,
) -> tuple[tuple[str, ...], str]:
    """The conventions to keep, likeliest first, and why."""
    if told:
        return (told,), "as told by the caller"
    written = str(section(config, "labkit").get("layer_ids"))
    if written in possible:
        return (written,), "the labkit entry in config.json"
    if len(possible) == 1:
        only = next(iter(possible))
        return (only,), f"the other reading lies beyond the target's {layers} layers"
    if layers is not None and layers >= 8:
        for name, bounds in possible.items():
            if bounds == default_boundaries(layers):
                return (name,), f"read so, they are the usual 2, L // 2, L - 3 of {layers} layers"
    clue = {1: LAYER_OUTPUT, 2: BOUNDARY}.get(ids[0])
    by_format = layout.ids
    if clue and by_format in (clue, None):
        return (clue,), f"the first id is {ids[0]}"
    if by_format and clue is None:
        return (by_format,), f"the format {layout.name}"
    first = clue or BOUNDARY
    other = LAYER_OUTPUT if first == BOUNDARY else BOUNDARY
    said = f"format {layout.name} means {by_format}" if by_format else "the format does not say"
    hint = f"first id {ids[0]} means {clue}" if clue else f"first id {ids[0]} gives no hint"
    return (first, other), f"open: {hint}, {said}; measure both"


def _at_the_end(bounds: tuple[int, ...], layers: int | None) -> str:
    if layers is None or layers not in bounds:
        return ""
    return (
        f"a state after all {layers} layers is read before the final norm; "
        "transformers' hidden_states has it only after"
    )
