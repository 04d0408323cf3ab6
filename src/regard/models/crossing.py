"""The attention of a model from what it writes to what it reads, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.nn.mechanism import Mechanism
from regard.tasks.batch import Batch

if TYPE_CHECKING:
    from regard.models.model import Model


@torch.no_grad()
def attention_to_source(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The exact weights (b,h,t,n) of each layer that attends from the targets of a batch to its inputs.

    By the path of the layer, in the order of the calls. Layers without weights (`linear`) are not among them.
    """
    assert batch.targets is not None
    calls: list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = []
    hooks = []
    for path, module in model.named_modules():
        if isinstance(module, Mechanism) and callable(getattr(module, "weights", None)):

            def note(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = path
            ) -> None:
                source = args[1] if len(args) > 1 else kwargs.get("source")
                if isinstance(source, Tensor) and source is not args[0]:
                    calls.append((path, module, args, kwargs))

            hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))
    try:
        model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    found = {}
    for path, module, args, kwargs in calls:
        weights: Tensor = module.weights(*args, **kwargs)  # type: ignore[operator]
        if weights.shape[2:] == (batch.targets.shape[1], batch.inputs.shape[1]):
            found[path] = weights
    return found
