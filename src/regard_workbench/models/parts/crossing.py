"""The attention of a model from what it writes to what it reads, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.formula.formula import widened
from regard.nn.parts import loss_terms
from regard.nn.parts.mechanism import Mechanism
from regard_workbench.tasks.parts.batch import GUIDE, Batch

if TYPE_CHECKING:
    from regard_workbench.models.parts.model import Model

LEAST = 1e-6  # the smallest weight whose logarithm is taken


class Crossings:
    """The calls of all layers that attend from one sequence to another, from `watch` to `leave`."""

    def __init__(self, model: nn.Module) -> None:
        self.calls: list[tuple[str, nn.Module, tuple[Any, ...], dict[str, Any]]] = []
        self.hooks: list[Any] = []
        for path, module in model.named_modules():
            if isinstance(module, Mechanism) and callable(getattr(module, "weights", None)):

                def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str = path) -> None:
                    source = args[1] if len(args) > 1 else kwargs.get("source")
                    if isinstance(source, Tensor) and source is not args[0]:
                        self.calls.append((path, module, args, kwargs))

                self.hooks.append(module.register_forward_pre_hook(note, with_kwargs=True))

    def leave(self) -> None:
        """Note no further calls."""
        for hook in self.hooks:
            hook.remove()

    def maps(self, batch: Batch) -> dict[str, Tensor]:
        """The weights (b,h,t,n) of each layer that attended from the targets of a batch to its inputs."""
        assert batch.targets is not None
        rows: dict[str, list[Tensor]] = {}
        for path, module, args, kwargs in self.calls:
            rows.setdefault(path, []).append(module.weights(*args, **kwargs))  # type: ignore[operator]
        sizes = (batch.targets.shape[1], batch.inputs.shape[1])
        # A recurrent decoder attends once for each target position: the rows of its calls are those of one map.
        maps = {path: torch.cat(steps, 2) for path, steps in rows.items() if _alike(steps)}
        return {path: weights for path, weights in maps.items() if weights.shape[2:] == sizes}


@torch.no_grad()
def attention_to_source(model: Model, batch: Batch) -> dict[str, Tensor]:
    """The exact weights (b,h,t,n) of each layer that attends from the targets of a batch to its inputs.

    By the path of the layer, in the order of the calls. Layers without weights (`linear`) are not among them.
    """
    crossings = Crossings(model)
    try:
        model(batch)
    finally:
        crossings.leave()
    return crossings.maps(batch)


class Guide(nn.Module):
    """A loss term that draws the attention of a model in training to given links:

        −weight · Σ_t (Σ_j g_tj log w_tj + (1 − Σ_j g_tj) log(1 − Σ_j w_tj))

    g is the batch's `GUIDE`, (b,t,n), over the rows t that it keeps; w the mean of the weights of all layers and heads
    from targets to inputs. What g misses to 1 has no link, and what w misses to 1 is what a sink takes; without a sink
    the second part is constant.

    Paper: Chen et al. 2016 (guided alignment training).
    """

    def __init__(self, model: Model, weight: float) -> None:
        super().__init__()
        self.weight = weight
        self._crossings: list[Crossings] = []  # of the pass that is running
        model.register_forward_pre_hook(self._begin)
        model.register_forward_hook(self._end, always_call=True)

    def _begin(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        if model.training and GUIDE in args[0].answers:
            self._crossings.append(Crossings(model))

    def _end(self, model: nn.Module, args: tuple[Any, ...], outputs: Any) -> None:
        if not self._crossings:
            return
        crossings = self._crossings.pop()
        crossings.leave()
        if outputs is None:  # the pass failed
            return
        batch = args[0]
        maps = [weights.mean(1) for weights in crossings.maps(batch).values()]
        if maps:
            mean = widened(torch.stack(maps).mean(0))
            links, rows = batch.answers[GUIDE].data.to(mean), batch.answers[GUIDE].keep
            none, sink = 1 - links.sum(-1), 1 - mean.sum(-1)
            log_likelihood = (links * mean.clamp(min=LEAST).log()).sum(-1) + none * sink.clamp(min=LEAST).log()
            total = -self.weight * (log_likelihood if rows is None else log_likelihood.masked_fill(~rows, 0)).sum()
            loss_terms.offer(lambda losses, counts: total)

    def observe_loss(self, mean: Tensor) -> None:
        """Do nothing: the term needs no baseline. Modules that have this method are those that may offer terms."""


def _alike(parts: list[Tensor]) -> bool:
    return len({(weights.shape[:2], weights.shape[3]) for weights in parts}) == 1
