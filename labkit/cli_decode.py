"""``labkit generate`` and ``labkit bench``: the decoding commands.

Owns: their options and what they print. Does not know: how errors are shown (`labkit.cli` does).
Invariants: bad options are refused before a model is loaded; with ``--json`` stdout holds one
object and nothing else; an interrupted run keeps what it has.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from labkit.bench import METHODS
from labkit.bench.prompts import read_prompts
from labkit.cli_options import AsJson, Device, Dtype, Model, emit
from labkit.config import AVAILABLE, WITH_HEADS, DecodeConfig, check_confidence, check_method
from labkit.drafters.shapes import SMALL_DYNAMIC_TREE, Chain, DynamicTree, Shape
from labkit.errors import BadInput
from labkit.events import Committed
from labkit.trace_file import writable

if TYPE_CHECKING:
    from labkit.events import AnyEvent
    from labkit.lab.session import Lab
    from labkit.trace import Trace

_TREE = SMALL_DYNAMIC_TREE  # as the methods that draft trees by themselves
DraftName = Annotated[
    str | None,
    typer.Option("--draft", help="Draft model: a folder of `labkit train draft`, or any model."),
]
Confidence = Annotated[
    float, typer.Option(help="Stop drafting below this cumulative probability (0: never).")
]
Length = Annotated[
    int | None,
    typer.Option("--draft-length", help="Tokens drafted per round, K; none: the method's own."),
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Most new tokens.")]
Head = Annotated[
    str | None,
    typer.Option(
        "--head",
        help="Folder of EAGLE's, MTP's or Medusa's heads in any known format, or a head of this "
        "lab by name, such as eagle31; none: the target's.",
    ),
]
Tree = Annotated[
    bool | None,
    typer.Option(
        "--tree/--chain",
        help="Shape of a head's drafts; none: the method's own. "
        f"A tree has {_TREE.nodes} nodes and width {_TREE.top_k}, or what the next two say.",
    ),
]
TreeNodes = Annotated[
    int | None, typer.Option(help=f"Most nodes of a drafted tree; none: {_TREE.nodes}.")
]
TreeWidth = Annotated[
    int | None,
    typer.Option(
        help=f"Nodes that grow at each depth of a tree, and children of each; none: {_TREE.top_k}."
    ),
]
_HEADED = "a method with a head (" + ", ".join(WITH_HEADS) + ")"


def generate(
    prompt: Annotated[str, typer.Option(help="What to say to the model.")],
    method: Annotated[str, typer.Option(help="One of " + ", ".join(AVAILABLE) + ".")] = "draft",
    model: Model = "smollm2-135m",
    max_new_tokens: NewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="0 keeps all.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Fixes every draw.")] = 0,
    draft_length: Length = None,
    draft: DraftName = None,
    draft_confidence: Confidence = 0.0,
    head: Head = None,
    tree: Tree = None,
    tree_nodes: TreeNodes = None,
    tree_width: TreeWidth = None,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the run.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="No chat template around the prompt.")] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    trace: Annotated[Path | None, typer.Option(help="Save a full trace here.")] = None,
    as_json: AsJson = False,
) -> None:
    """Decode one prompt, speculatively or not, and say how it went."""
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        **({} if draft_length is None else {"draft_length": draft_length}),
        "stop_strings": tuple(stop or ()),
        "detail": "full" if trace else "summary",
    }
    _check_settings(settings)
    check_method(method, available=AVAILABLE)
    shape = _shape([method], tree=tree, nodes=tree_nodes, width=tree_width)
    _check_prompt(prompt)
    if trace:
        writable(trace, name="--trace")
    _check_drafters([method], draft=draft, head=head, confidence=draft_confidence)

    lab = _open(
        model, dtype, device, draft=draft, head=head, shape=shape, confidence=draft_confidence
    )
    events = lab.events(prompt, method=method, chat=not raw, **settings)
    start = lab.clock()
    kept, interrupted = _follow(events, quiet=as_json)
    seconds = lab.clock() - start
    run = lab.trace(kept, prompt, method=method, chat=not raw, **settings)
    if trace:
        run.save(trace)
    _report(lab, run, seconds, as_json=as_json, interrupted=interrupted)
    if trace and not as_json:
        typer.echo(f"trace written to {trace}", err=True)
    if interrupted:
        raise typer.Exit(130)


def _follow(events: "Iterator[AnyEvent]", *, quiet: bool) -> "tuple[list[AnyEvent], bool]":
    """Collect the events, printing text as it comes; an interrupt ends the run early."""
    kept: list[AnyEvent] = []
    try:
        for event in events:
            kept.append(event)
            if isinstance(event, Committed) and not quiet:
                typer.echo(event.text, nl=False)
    except KeyboardInterrupt:
        return kept, True
    return kept, False


def _report(lab: "Lab", run: "Trace", seconds: float, *, as_json: bool, interrupted: bool) -> None:
    from labkit.devices import dtype_name
    from labkit.lab.report import row

    numbers = asdict(row([run], seconds=seconds))
    reason = "interrupted" if interrupted or not run.finished else run.finished.reason
    if as_json:
        facts = {
            "model": lab.loaded.name,
            "dtype": dtype_name(lab.loaded.dtype),
            "device": str(lab.loaded.device),
            "text": run.text,
            "stop_reason": reason,
        }
        emit(numbers | facts, as_json=True, text=run.text)
        return
    length = numbers["mean_accepted_length"]
    rate = (
        f"{numbers['accepted']} of {numbers['drafted']} drafted tokens accepted"
        if numbers["drafted"]
        else "nothing drafted"
    )
    typer.echo(
        f"\n\n{numbers['tokens']} tokens in {seconds:.2f} s "
        f"({numbers['tokens_per_second']:.1f} tokens/s), {numbers['rounds']} rounds, {rate}, "
        f"mean accepted length {'n/a' if length is None else f'{length:.2f}'} "
        f"(the target's own token counted); "
        f"{reason if reason == 'interrupted' else f'stopped by {reason}'}.",
        err=True,
    )


def bench(
    methods: Annotated[str, typer.Option(help="Comma-separated; `generate` is transformers'.")] = (
        "generate,ar,ngram,draft"
    ),
    prompts: Annotated[
        Path | None, typer.Option(help="JSON lines; none: the lab's own 48.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Use this many prompts in all, spread over the kinds.")
    ] = None,
    model: Model = "smollm2-135m",
    max_new_tokens: NewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Fixes every draw.")] = 0,
    draft_length: Length = None,
    draft: DraftName = None,
    draft_confidence: Confidence = 0.0,
    head: Head = None,
    tree: Tree = None,
    tree_nodes: TreeNodes = None,
    tree_width: TreeWidth = None,
    detail: Annotated[
        str, typer.Option(help="What to record: timing, summary or full.")
    ] = "timing",
    batch_size: Annotated[int, typer.Option(help="Prompts per forward; 1 for now.")] = 1,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Time methods against each other: same prompts, same run, taking turns."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    for name in names:
        check_method(name, available=METHODS)
    settings: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "seed": seed,
        **({} if draft_length is None else {"draft_length": draft_length}),
        "detail": detail,
    }
    _check_settings(settings)
    if batch_size != 1:
        raise BadInput(
            "batch size",
            expected="batch size 1",
            got=str(batch_size),
            next_step="leave --batch-size out; sequences are decoded one at a time",
        )
    shape = _shape(names, tree=tree, nodes=tree_nodes, width=tree_width)
    _check_drafters(names, draft=draft, head=head, confidence=draft_confidence)
    chosen = read_prompts(prompts, limit=limit)
    from labkit.bench.run import bench as run_bench
    from labkit.bench.run import conditions

    lab = _open(
        model, dtype, device, draft=draft, head=head, shape=shape, confidence=draft_confidence
    )
    rows = run_bench(lab, names, chosen, progress=_progress, **settings)
    facts = conditions(lab, chosen, methods=names, draft_confidence=draft_confidence, **settings)
    table = [row.to_json() for row in rows]
    emit({"conditions": facts, "rows": table}, as_json=as_json, text=_table(facts, table))


def _progress(what: str, done: int, total: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{done}/{total} {what:<40.40}", nl=False, err=True)


def _table(conditions: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table, conditions below."""
    lines = [
        "\n| method | tokens/s | × ar | mean accepted length | accepted / drafted "
        "| outside forwards | recording | same text as ar | near ties | faults |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        drafted = f"{r['accepted']} / {r['drafted']}" if r["drafted"] else "n/a"
        cells = (
            r["method"],
            f"{r['tokens_per_second']:.1f}",
            _number(r["speedup_vs_ar"], "{:.2f}"),
            _number(r["mean_accepted_length"], "{:.2f}"),
            drafted,
            _number(r["outside_forwards"], "{:.1%}"),
            _number(r["recording"], "{:.2%}"),
            "n/a" if r["same_as_ar"] is None else f"{r['same_as_ar']} of {r['prompts']}",
            _number(r["near_ties"], "{}"),
            _number(r["faults"], "{}"),
        )
        lines.append("| " + " | ".join(cells) + " |")
    facts = {k: v for k, v in conditions.items() if k != "settings"}
    facts["draft lengths"] = (
        " and ".join(f"{n} ({method})" for method, n in facts["draft lengths"].items()) or "none"
    )
    lines.append("\n" + ", ".join(f"{k} {v}" for k, v in facts.items()))
    lines.append(", ".join(f"{k} {v}" for k, v in conditions["settings"].items()))
    return "\n".join(lines)


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None else form.format(value)


def _open(model: str, dtype: str, device: str, **options: Any) -> "Lab":
    from labkit.lab.session import open_lab

    return open_lab(model, dtype=dtype, device=device, **options)


def _shape(
    methods: Sequence[str], *, tree: bool | None, nodes: int | None, width: int | None
) -> Shape | None:
    """The shape that the options ask for, None: each method's own.

    Raises:
        BadInput: a shape for methods that draft one continuation, or sizes of a tree for chains.
    """
    sizes = {"--tree-nodes": nodes, "--tree-width": width}
    given = [name for name, value in sizes.items() if value is not None]
    asked = ["--tree" if tree else "--chain"] if tree is not None else given
    if asked and tree is not False and not {*WITH_HEADS} & {*methods}:
        raise BadInput(
            asked[0],
            expected=_HEADED,
            got=", ".join(methods),
            next_step=f"leave {asked[0]} out; these drafters propose one continuation",
        )
    if tree is False and given:
        raise BadInput(
            given[0], expected="--tree", got="--chain", next_step=f"leave {given[0]} out"
        )
    if tree is False:
        return Chain()
    if tree is None and not given:
        return None
    return DynamicTree(
        top_k=_TREE.top_k if width is None else width,
        nodes=_TREE.nodes if nodes is None else nodes,
    )


def _check_settings(settings: dict[str, Any]) -> None:
    """Raises BadInput that names the option beside the setting."""
    try:
        DecodeConfig(**settings)
    except BadInput as error:
        if error.what not in settings:
            raise
        option = "--stop" if error.what == "stop_strings" else f"--{error.what.replace('_', '-')}"
        raise BadInput(
            error.what,
            expected=error.expected,
            got=error.got,
            next_step=f"{error.next_step} ({option})",
        ) from error


def _check_drafters(
    methods: Sequence[str], *, draft: str | None, head: str | None, confidence: float
) -> None:
    """Refuse options of a drafter that is not used, or that cannot be."""
    check_confidence(confidence, name="--draft-confidence")
    headed = bool({*WITH_HEADS} & {*methods})
    unused = (
        ("--draft", draft is not None and "draft" not in methods, "the method draft"),
        ("--head", head is not None and not headed, _HEADED),
        (
            "--draft-confidence",
            bool(confidence) and not headed and "draft" not in methods,
            f"the method draft or {_HEADED}",
        ),
    )
    for name, wrong, expected in unused:
        if wrong:
            raise BadInput(
                name,
                expected=expected,
                got=", ".join(methods),
                next_step=f"choose {expected}, or leave the option out",
            )
    if head is not None:
        from labkit.lab.head_names import head_folder

        head_folder(head)


def _check_prompt(prompt: str) -> None:
    if not prompt.isprintable() and any("\ud800" <= c <= "\udfff" for c in prompt):
        raise BadInput(
            "prompt", expected="UTF-8 text", got="other bytes", next_step="type a prompt in UTF-8"
        )
    if not prompt.strip():
        raise BadInput("prompt", expected="some text", got=repr(prompt), next_step="type a prompt")
