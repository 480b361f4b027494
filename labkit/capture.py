"""Named, scoped forward hooks: look at an activation, or replace it.

Owns: hooks that it placed, and their removal. Does not know: what is being looked at.
Invariants: on leaving the scope, also by an error or an interrupt, exactly the hooks placed here
are gone; a callback that raises does not stay attached.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from labkit.errors import BadInput

Edit = Callable[[Tensor], Tensor | None]


@contextmanager
def capture(
    model: nn.Module, names: Mapping[str, str], *, edit: Mapping[str, Edit] | None = None
) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of sub-modules while the scope lasts.

        with capture(model, {"h1": "model.layers.0"}) as seen:
            model(ids)
        seen["h1"]                         # output of the first layer, of the last forward

    Args:
        names: label -> dotted path of a module, as in ``model.named_modules()``.
        edit: label -> function of the output; it may return a tensor to replace it, or None.

    Yields:
        dict that fills with the (first) output tensor of each module, by label; detached.

    Raises:
        BadInput: a path that the model does not have, or an edit without a label.
    """
    modules = {path: _module(model, path) for path in names.values()}
    edit = dict(edit or {})
    for label in edit:
        _known(label, names, "edit", "name the module under the same label")
    seen: dict[str, Tensor] = {}
    handles = []
    try:
        for label, path in names.items():
            hook = _hook(label, seen, edit.get(label))
            handles.append(modules[path].register_forward_hook(hook))
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _module(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)  # walking through all modules costs more than a layer
    except AttributeError:
        _known(path, dict(model.named_modules()), "module path", "look at model.named_modules()")
        raise


def _known(name: str, known: Mapping[str, Any], what: str, next_step: str) -> None:
    if name not in known:
        near = [k for k in known if k and (k in name or name in k)][:3]
        raise BadInput(
            f"{what} {name!r}",
            expected="one of " + (", ".join(near) if near else f"{len(known)} known names"),
            got=repr(name),
            next_step=next_step,
        )


def _hook(label: str, seen: dict[str, Tensor], edit: Edit | None) -> Callable[..., Any]:
    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        first = output[0] if isinstance(output, tuple) else output
        changed = edit(first) if edit else None
        seen[label] = (first if changed is None else changed).detach()
        if changed is None:
            return None
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return hook
