"""From a folder to a head checkpoint and its report.

Owns: the order of questions: which format, which tensors, which switches, which words, which
layers. Does not know: how each is answered, the target's weights.
Invariants: what cannot be read is refused before anything is handed out; `inspect_checkpoint`
tells as much as it can of a head that `read_checkpoint` refuses.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit.errors import BadInput, LabError
from labkit.heads.checkpoints.files import (
    broken,
    check_config,
    check_tensors,
    has_adapter,
    made_of,
    read_folder,
)
from labkit.heads.checkpoints.fit import check_rotary, expected_shapes, misfits
from labkit.heads.checkpoints.layer_ids import LayerIds, decide, stored_ids
from labkit.heads.checkpoints.layouts import Detected, canonical_name, detect, section
from labkit.heads.checkpoints.records import (
    UNSETTLED,
    HeadCheckpoint,
    InspectReport,
    TargetMark,
)
from labkit.heads.checkpoints.settings import (
    feedback_is_open,
    general_doubts,
    layers_in,
    read_shapes,
    read_switches,
    version_of,
)
from labkit.heads.checkpoints.vocabulary import read_vocabulary
from labkit.heads.eagle import EagleConfig, EagleHead, default_boundaries

EMBEDDING, OUTPUT = "embed_tokens.weight", "lm_head.weight"


def read_checkpoint(
    path: Path | str, *, convention: str | None = None, target_layers: int | None = None
) -> HeadCheckpoint:
    """Read a head of any known format.

    Args:
        path: folder with ``config.json`` and safetensors.
        convention: "boundary" or "layer_output" where you know what the layer ids mean.
        target_layers: the target's depth L, which can settle what the ids mean and gives heads
            without ids their boundaries; without it those are `UNSETTLED`.

    Returns:
        Tensors may be missing or of a wrong shape (see its report); `build_head` refuses those.

    Raises:
        BadCheckpoint: files, config, vocabulary map or layer ids that cannot be read.
        UnsupportedModel: latent attention, quantised weights and other heads, by name.
    """
    made = _Reading(Path(path), convention=convention, target_layers=target_layers)
    return made.checkpoint()


def inspect_checkpoint(
    path: Path | str, *, convention: str | None = None, target_layers: int | None = None
) -> InspectReport:
    """What a folder holds, and what is missing, unused or suspicious; see `read_checkpoint`.

    Raises:
        BadCheckpoint, UnsupportedModel: files that are no EAGLE head of a known kind.
    """
    made = _Reading(Path(path), convention=convention, target_layers=target_layers)
    try:
        return made.checkpoint().report
    except LabError as error:
        return made.partial_report(error)


def readings(checkpoint: HeadCheckpoint, *, target_layers: int | None = None) -> list[EagleConfig]:
    """Every config that the file allows, likeliest first; more than one only where it is open.

    Measure first-position acceptance under each, then `settle` on the best.

    Args:
        target_layers: the target's depth L: gives heads without ids their boundaries, and leaves
            out readings beyond it.

    Raises:
        BadInput: a head without ids, and no depth.
    """
    found = []
    for config in (checkpoint.config, *checkpoint.alternatives):
        if UNSETTLED in config.boundaries:
            if target_layers is None:
                raise BadInput(
                    "target_layers",
                    expected="the target's number of layers, for a head that names no layers",
                    got="None",
                    next_step="pass target_layers",
                )
            config = replace(config, boundaries=default_boundaries(target_layers))
        if target_layers is None or max(config.boundaries, default=0) <= target_layers:
            found.append(config)
    return found


def settle(checkpoint: HeadCheckpoint, config: EagleConfig, *, why: str) -> HeadCheckpoint:
    """The same head under one of its `readings`, for good; ``why`` goes into the report."""
    names = {bounds: name for name, bounds in checkpoint.report.readings}
    chosen = (names.get(config.boundaries, "boundary"), config.boundaries)
    switches = {name: getattr(config, name) for name in checkpoint.report.switches}
    report = replace(
        checkpoint.report,
        name=name_of(config),
        readings=(chosen,) if config.boundaries else (),
        layer_ids_decided_by=why,
        switches=switches,
    )
    return replace(checkpoint, config=config, alternatives=(), report=report)


def name_of(config: EagleConfig) -> str:
    """What people call a head with these switches."""
    if config.version == 1:
        return "EAGLE-1"
    odd = [name for name in ("norm_before_fc", "norm_before_residual") if getattr(config, name)]
    if config.fc_norm and config.norm_output and not odd:
        return "EAGLE-3.1"
    odd += [name for name in ("fc_norm", "norm_output") if getattr(config, name)]
    return "EAGLE-3" + (f" with {', '.join(sorted(odd))}" if odd else "")


def describe(checkpoint: HeadCheckpoint, report: InspectReport) -> InspectReport:
    """``report`` with what config and tensors of a checkpoint say by themselves."""
    config, tensors = checkpoint.config, checkpoint.tensors
    wanted = expected_shapes(EagleHead, config)
    hidden = {"boundaries", "vocab_size", "draft_vocab_size", "version", *report.switches}
    shapes = {k: v for k, v in vars(config).items() if k not in hidden}
    return replace(
        report,
        name=name_of(config),
        version=config.version,
        vocabulary=report.vocabulary | words(checkpoint.vocab_ids, vocab_size=config.vocab_size),
        shapes=shapes,
        **measure(tensors),
        borrowed=checkpoint.borrowed,
        missing=tuple(sorted(wanted.keys() - tensors.keys() - {*checkpoint.borrowed})),
        misfits=report.misfits + misfits(tensors, wanted),
    )


def words(ids: Tensor, *, vocab_size: int) -> dict[str, Any]:
    """What a report says of a head's vocabulary; ids: [D] target ids."""
    return {
        "vocab_size": vocab_size,
        "draft_vocab_size": len(ids),
        "first_ids": tuple(ids[:4].tolist()),
        "last_id": int(ids[-1]),
        "share_of_ids": round(len(ids) / vocab_size, 4),
    }


def measure(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Numbers of tensors, parameters and bytes, as fields of `InspectReport`."""
    kinds = Counter(str(t.dtype).removeprefix("torch.") for t in tensors.values())
    return {
        "tensors": len(tensors),
        "parameters": sum(t.numel() for t in tensors.values()),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
        "dtypes": dict(sorted(kinds.items())),
    }


@dataclass
class _Reading:
    """One folder on its way to a checkpoint; keeps what was found until something is refused."""

    path: Path
    convention: str | None
    target_layers: int | None
    config: dict[str, Any] = field(init=False)
    tensors: dict[str, Tensor] = field(init=False)
    detected: Detected = field(init=False)
    switches: dict[str, bool] = field(init=False, default_factory=dict)
    shapes: dict[str, Any] = field(init=False, default_factory=dict)
    doubts: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.config, stored = read_folder(self.path)
        self.detected = detect(self.path, self.config, stored)
        self.tensors = {}
        for name, tensor in stored.items():
            ours = canonical_name(name)
            if ours in self.tensors:
                raise broken(self.path, expected="one tensor per name", got=f"{ours} twice")
            self.tensors[ours] = tensor
        if has_adapter(self.path):
            self.doubts.append("an adapter for the target lies beside it; it is not applied")

    def checkpoint(self) -> HeadCheckpoint:
        layout, tensors = self.detected.layout, dict(self.tensors)
        check_config(self.path, self.config)
        check_tensors(self.path, tensors)
        version = version_of(tensors)
        switches, doubts = read_switches(self.config, layout, tensors)
        self.doubts += doubts
        self.switches = switches | {
            "fc_bias": _fc_bias(self.config, tensors, version),
            "own_embedding": EMBEDDING in tensors,
        }
        shapes = self.shapes = read_shapes(self.path, self.config, layout, tensors)
        maps = {name: tensors.pop(name, None) for name in ("d2t", "t2d")}
        sizes = {name: shapes[name] for name in ("vocab_size", "draft_vocab_size")}
        ids, source, found = read_vocabulary(self.path, maps["d2t"], maps["t2d"], **sizes)
        self.doubts += found
        fields = {"version": version} | shapes | self.switches
        if version == 1:
            layers = LayerIds(None, "", (), "EAGLE-1 reads the state after the final norm")
        else:
            layers = self._layers(shapes)
        configs = [
            made_of(self.path, EagleConfig, fields | {"boundaries": bounds})
            for bounds in [bounds for _, bounds in layers.readings] or [()]
        ]
        if feedback_is_open(self.config, layout):
            configs += [replace(config, norm_output=False) for config in configs]
        return self._assemble(configs, tensors, ids, source, layers)

    def _layers(self, shapes: Mapping[str, Any]) -> LayerIds:
        ids, _, _ = stored_ids(self.path, self.config)
        width = self.tensors["fc.weight"].shape[1] if "fc.weight" in self.tensors else 0
        fused = len(ids) if ids else round(width / shapes["target_hidden_size"]) or 3
        found = decide(
            self.path,
            self.config,
            self.detected.layout,
            fused=fused,
            convention=self.convention,
            target_layers=self.target_layers,
        )
        self.doubts += [
            *found.suspicious,
            *general_doubts(self.config, self.detected.layout, fused=fused),
        ]
        return found

    def _assemble(
        self,
        configs: list[EagleConfig],
        tensors: dict[str, Tensor],
        vocab_ids: Tensor,
        map_source: str,
        layers: LayerIds,
    ) -> HeadCheckpoint:
        config = configs[0]
        check_rotary(config, folder=self.path)
        wanted = expected_shapes(EagleHead, config, folder=self.path)
        unused = tuple(sorted(tensors.keys() - wanted.keys()))
        self.doubts += _lost_inside(unused)
        ours = section(self.config, "labkit")
        made = HeadCheckpoint(
            config=config,
            alternatives=tuple(configs[1:]),
            tensors={name: tensors[name] for name in wanted if name in tensors},
            vocab_ids=vocab_ids,
            format=self.detected.layout.name,
            borrowed=_borrowed(config, tensors, ours),
            target=mark_of(ours),
            folder=self.path,
            report=self._blank(
                layer_ids=layers.stored,
                layer_ids_from=layers.found_in,
                layer_ids_decided_by=layers.decided_by,
                readings=layers.readings,
                vocabulary={"map": map_source},
                unused=unused,
                suspicious=tuple(self.doubts),
                misfits=_surplus_layers(config, tensors),
            ),
        )
        return replace(made, report=describe(made, made.report))

    def _blank(self, **found: Any) -> InspectReport:
        known = {"vocabulary": {}, "shapes": self.shapes, "dtypes": {}}
        switches = self.switches | {
            name: bool(self.shapes.get(name)) for name in ("attention_bias", "qk_norm")
        }
        return InspectReport(
            format=self.detected.layout.name,
            decided_by=self.detected.decided_by,
            alternatives=self.detected.alternatives,
            **known | {"switches": switches} | found,
        )

    def partial_report(self, error: LabError) -> InspectReport:
        """What was found before ``error``."""
        return self._blank(
            version=version_of(self.tensors),
            suspicious=tuple(self.doubts),
            refused=(str(error),),
            **measure(self.tensors),
        )


def _fc_bias(config: Mapping[str, Any], tensors: Mapping[str, Tensor], version: int) -> bool:
    # EAGLE-1's key; later heads use the same key for other things
    return "fc.bias" in tensors or (version == 1 and config.get("bias") is True)


def _borrowed(
    config: EagleConfig, tensors: Mapping[str, Tensor], ours: Mapping[str, Any]
) -> tuple[str, ...]:
    names = [] if EMBEDDING in tensors else [EMBEDDING]
    all_words = config.draft_vocab_size == config.vocab_size
    if OUTPUT not in tensors and (all_words or OUTPUT in (ours.get("borrowed") or ())):
        names.append(OUTPUT)
    return tuple(names)


def mark_of(ours: Mapping[str, Any]) -> TargetMark | None:
    """The target that the ``labkit`` entry of a config names."""
    name, fingerprint = ours.get("target"), ours.get("target_fingerprint")
    return TargetMark(str(name), str(fingerprint)) if name and fingerprint else None


def _lost_inside(unused: tuple[str, ...]) -> list[str]:
    inside = [n for n in unused if n.startswith("layers.") and not n.endswith("inv_freq")]
    if not inside:
        return []
    return [f"{len(inside)} unused tensors lie inside its layers, first {inside[0]}: it was made "
            "to compute with them"]  # fmt: skip


def _surplus_layers(config: EagleConfig, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    if (found := layers_in(tensors)) <= config.layers:
        return ()
    return (f"{found} layers are stored, expected num_hidden_layers {config.layers}",)
