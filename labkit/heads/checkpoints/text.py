"""A report for people. Owns: its wording. Does not know: how it came about."""

from labkit.heads.checkpoints.records import UNSETTLED, InspectReport


def report_text(report: InspectReport) -> str:
    """Several lines, the most important first, problems last."""
    others = f"; could also be {', '.join(report.alternatives)}" if report.alternatives else ""
    on = [name for name, state in report.switches.items() if state]
    stored = ", ".join(f"{n} {kind}" for kind, n in report.dtypes.items())
    rows = [
        ("head", report.name or f"EAGLE-{report.version}"),
        ("format", f"{report.format} (by {report.decided_by}{others})"),
        ("switched on", ", ".join(on) or "none"),
        ("layers", _layers(report)),
        ("vocabulary", _vocabulary(report)),
        ("shapes", ", ".join(f"{k} {v}" for k, v in report.shapes.items() if k != "rope")),
        ("rope", str(report.shapes.get("rope", "unknown"))),
        ("stored", f"{report.tensors} tensors ({stored}), {report.parameters} numbers, "
                   f"{report.bytes} bytes"),
        ("from the target", ", ".join(report.borrowed) or "nothing"),
        ("missing", ", ".join(report.missing) or "nothing"),
        ("unused", ", ".join(report.unused) or "nothing"),
    ]  # fmt: skip
    rows += [("does not fit", what) for what in report.misfits]
    rows += [("suspicious", what) for what in report.suspicious]
    rows += [("REFUSED", what) for what in report.refused]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {what}" for name, what in rows)


def _layers(report: InspectReport) -> str:
    if not report.readings:
        return report.layer_ids_decided_by or "unknown"
    if UNSETTLED in report.readings[0][1]:
        return report.layer_ids_decided_by
    ids = f"ids {list(report.layer_ids)}" if report.layer_ids else "no ids"
    read = " or ".join(f"after {list(bounds)} layers ({name})" for name, bounds in report.readings)
    return f"{ids}: {read}; {report.layer_ids_decided_by}"


def _vocabulary(report: InspectReport) -> str:
    words = report.vocabulary
    if "draft_vocab_size" not in words:
        return "unknown"
    first = ", ".join(str(i) for i in words["first_ids"])
    return (
        f"{words['draft_vocab_size']} of {words['vocab_size']} words "
        f"({words['share_of_ids']:.1%}), map: {words['map']}; ids {first}, ..., {words['last_id']}"
    )
