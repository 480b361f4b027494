"""Several methods over the same prompts, in one run, taking turns.

Owns: the order of runs and the pooling. Does not know: how a method works.
Invariants: every method sees every prompt; which method goes first rotates from prompt to prompt,
so that a machine that slows down slows all of them; a short run of each comes first, unmeasured.
"""

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

import labkit
from labkit.bench import BASELINE, METHODS
from labkit.bench.prompts import Prompt
from labkit.bench.recording import recording_seconds
from labkit.config import check_method
from labkit.devices import dtype_name
from labkit.errors import BadInput
from labkit.kernels import plain_linear
from labkit.lab.compare import first_difference
from labkit.lab.report import Row, row
from labkit.lab.session import DRAFT_LENGTH, Lab
from labkit.metrics import cost
from labkit.progress import Progress
from labkit.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """One method. speedup_vs_ar: speed over that of ``ar`` in this run, None without ``ar``.
    same_as_ar: prompts whose text has the very tokens that ``ar`` gave; near_ties, faults: the
    others, by what their first difference is (greedy texts only; see `labkit.lab.compare`).
    recording: the cost of
    building the run's events over its decoding time, None where nothing is recorded."""

    numbers: Row
    speedup_vs_ar: float | None
    same_as_ar: int | None
    near_ties: int | None
    faults: int | None
    recording: float | None

    def to_json(self) -> dict[str, Any]:
        rest = {
            "speedup_vs_ar": self.speedup_vs_ar,
            "same_as_ar": self.same_as_ar,
            "near_ties": self.near_ties,
            "faults": self.faults,
            "recording": self.recording,
        }
        return asdict(self.numbers) | rest


@dataclass(slots=True)
class _Runs:
    traces: list[Trace]
    tokens: list[tuple[int, ...]]
    prompts: list[list[int]]
    seconds: float = 0.0


def bench(
    lab: Lab,
    methods: Sequence[str],
    prompts: Sequence[Prompt],
    *,
    progress: Progress | None = None,
    **settings: Any,
) -> list[BenchRow]:
    """Run every method over every prompt.

    Args:
        methods: names of ``METHODS``; "generate" is transformers' own greedy or sampled decoding.
        progress: told which run is next.
        settings: fields of `DecodeConfig`; detail defaults to "timing".

    Raises:
        BadInput: before any run: an unknown method or setting, or one method named twice.
    """
    settings = {"detail": "timing", **settings}
    _check(lab, methods, settings)
    runs = {method: _Runs([], [], []) for method in methods}
    for method in methods:
        _once(lab, method, prompts[0], {**settings, "max_new_tokens": 8})
    for done, (method, prompt) in enumerate(_turns(methods, prompts)):
        if progress:
            progress(f"{method}, {prompt.id}", done, len(methods) * len(prompts))
        tokens, trace, seconds = _once(lab, method, prompt, settings)
        kept = runs[method]
        kept.tokens.append(tokens)
        kept.seconds += seconds
        kept.prompts.append(lab.tokens(prompt.text))
        if trace:
            kept.traces.append(trace)
    greedy = lab.config(**settings).temperature == 0
    return [_pool(lab, method, runs, greedy=greedy) for method in methods]


def _check(lab: Lab, methods: Sequence[str], settings: dict[str, Any]) -> None:
    for method in methods:
        check_method(method, available=METHODS)
        if method != BASELINE:
            lab.drafter(method)
    if not methods or len(set(methods)) != len(methods):
        raise BadInput(
            "methods",
            expected="each method once",
            got=",".join(methods) or "none",
            next_step="name every method one time",
        )
    lab.config(**settings)


def _turns(methods: Sequence[str], prompts: Sequence[Prompt]) -> Iterator[tuple[str, Prompt]]:
    for i, prompt in enumerate(prompts):
        shift = i % len(methods)
        yield from ((method, prompt) for method in (*methods[shift:], *methods[:shift]))


def _once(
    lab: Lab, method: str, prompt: Prompt, settings: dict[str, Any]
) -> tuple[tuple[int, ...], Trace | None, float]:
    """New tokens, trace (None for the baseline) and wall seconds of one run."""
    if method == BASELINE:
        with plain_linear(lab.model):
            start = lab.clock()
            return _generate(lab, prompt, settings), None, lab.clock() - start
    start = lab.clock()
    trace = lab.record(prompt.text, method=method, **settings)
    return trace.tokens, trace, lab.clock() - start


def _generate(lab: Lab, prompt: Prompt, settings: dict[str, Any]) -> tuple[int, ...]:
    """The same prompt through transformers' ``generate``."""
    config = lab.config(**settings)
    ids = torch.tensor([lab.tokens(prompt.text)], device=lab.target.device)
    warm = config.temperature > 0
    sampling = {
        "temperature": config.temperature,
        "top_k": config.top_k or None,
        "top_p": config.top_p,
    }
    # torch's own generator has to be seeded for it, and is given back as it was
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(config.seed)
        out = lab.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=config.max_new_tokens,
            eos_token_id=sorted(config.eos_ids) or None,
            pad_token_id=lab.tokenizer.pad_token_id or 0,
            do_sample=warm,
            repetition_penalty=config.repetition_penalty,
            **(sampling if warm else {}),
        )
    return tuple(out[0, ids.shape[1] :].tolist())


def _pool(lab: Lab, method: str, runs: dict[str, _Runs], *, greedy: bool) -> BenchRow:
    mine, ar = runs[method], runs.get("ar")
    numbers = row(mine.traces, seconds=mine.seconds) if mine.traces else _baseline(method, mine)
    recording = (
        sum(map(recording_seconds, mine.traces)) / cost(*mine.traces).decode
        if mine.traces
        else None
    )
    if ar is None:
        return BenchRow(
            numbers=numbers,
            speedup_vs_ar=None,
            same_as_ar=None,
            near_ties=None,
            faults=None,
            recording=recording,
        )
    verdicts = _verdicts(lab, mine, ar) if greedy else []
    return BenchRow(
        numbers=numbers,
        speedup_vs_ar=numbers.tokens_per_second / (sum(map(len, ar.tokens)) / ar.seconds),
        same_as_ar=sum(a == b for a, b in zip(mine.tokens, ar.tokens, strict=True)),
        near_ties=verdicts.count("near tie") if greedy else None,
        faults=verdicts.count("fault") if greedy else None,
        recording=recording,
    )


def _verdicts(lab: Lab, mine: _Runs, ar: _Runs) -> list[str]:
    """What the first difference from ``ar`` is, for every prompt whose texts differ."""
    found = (
        first_difference(lab.target, prompt, left, right)
        for prompt, left, right in zip(mine.prompts, mine.tokens, ar.tokens, strict=True)
    )
    return [difference.verdict for difference in found if difference]


def _baseline(method: str, mine: _Runs) -> Row:
    """What can be said of runs without a trace."""
    count = sum(map(len, mine.tokens))
    return Row(
        method=method,
        prompts=len(mine.tokens),
        prompt_tokens=sum(map(len, mine.prompts)),
        tokens=count,
        rounds=None,
        drafted=None,
        accepted=None,
        mean_accepted_length=None,
        acceptance_by_position=(),
        target_forwards=None,
        draft_forwards=None,
        seconds=mine.seconds,
        tokens_per_second=count / mine.seconds,
    )


def conditions(
    lab: Lab, prompts: Sequence[Prompt], *, methods: Sequence[str] = (), **settings: Any
) -> dict[str, Any]:
    """What a reader of the table must know; drafters and shapes only where they were named, draft
    lengths of those of ``methods`` that draft."""
    lengths = {
        method: settings.get("draft_length", DRAFT_LENGTH[method])
        for method in methods
        if DRAFT_LENGTH.get(method)
    }
    named = {"draft model": lab.draft, "head": lab.head, "shape": lab.shape}
    return {
        "model": lab.loaded.name,
        "dtype": dtype_name(lab.loaded.dtype),
        "device": lab.loaded.device.type,
        "linear": lab.loaded.linear,
        "draft lengths": lengths,
        **{name: str(given) for name, given in named.items() if given},
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "prompts": len(prompts),
        "settings": settings,
        "labkit": labkit.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }
