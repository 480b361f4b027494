"""The families of published prediction modules in a table, as the code has them.

Owns: the words. Does not know: what the switches do (`labkit.heads.mtp` does).
"""

from labkit.heads.layers import FINAL
from labkit.heads.mtp import ADAPTERS, Adapter
from labkit.lab.tables import Table

_MODELS = {
    "generic": "the lab's own heads",
    "deepseek": "DeepSeek-V3, R1, V3.2",
    "glm": "GLM-4.5 to 5",
    "qwen": "Qwen3-Next, 3.5, 3.6",
    "mimo": "MiMo-7B",
}


def families() -> Table:
    """`labkit.heads.mtp.ADAPTERS`, one row each."""
    rows = tuple(_cells(row) for row in ADAPTERS.values())
    columns = (
        "family",
        "models",
        "state of the target",
        "projection reads",
        "hands on its own state",
        "norms scale by",
        "projection in the file",
    )
    differing = [row.name for row in ADAPTERS.values() if row.state != FINAL]
    told = f"{len(rows)} families. Before the final norm: {', '.join(differing)} alone."
    return Table(columns, rows, told)


def _cells(row: Adapter) -> tuple[str, ...]:
    return (
        row.name,
        _MODELS.get(row.name, ", ".join(row.model_types)),
        "after its final norm" if row.state == FINAL else "*before* its final norm",
        "*state, token*" if row.hidden_first else "token, state",
        "normed" if row.recycles_normed else "*raw*",
        "*1 + weight*" if row.norm_adds_one else "weight",
        f"`{row.prefix}{row.eh_proj}.weight`",
    )
