"""Many interventions in few forward passes: copies of the same examples in one batch, another change in each.

Three ways, the next only where one fails: copies in a batch, with the layers before the first change not run again but
given their known output; copies in a batch; one forward pass for each change. In each batch nothing is changed in the
first copy: if its measure is not that of a plain run, examples of a batch influence each other (or a tensor has its
batch on another axis), and the next way is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RegardError
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import ModelCall, first_tensor, mapped, tensors_in
from regard.observation.causes.measures import Measure
from regard.observation.causes.rerun import LayerEdit, Rerun, SiteEdit

ROWS = 4096  # positions of all copies in one batch, about
LARGEST = 1 << 26  # numbers in the output of one batch
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-3}  # of an unchanged copy, relative to its measure
COARSE = 5e-2  # the same in half precision


@dataclass(frozen=True)
class SiteChange:
    """One intervention: where, and from which source of rows it is taken."""

    place: str  # the name of a site or layer
    head: int | None = None  # None: all heads
    position: int | None = None  # None: all positions


Edits = Callable[[Sequence[SiteChange], int], tuple[SiteEdit | None, LayerEdit | None]]


class Sweep:
    """Measures a model under many changes of the run on one input."""

    def __init__(self, rerun: Rerun, call: ModelCall, measure: Measure, together: int | None = None) -> None:
        self.rerun, self.call, self.measure = rerun, call, measure
        self.batch = call.batch
        self.outputs: dict[nn.Module, Any] = {}  # of layers that ran once, in the order of their run
        self.order: list[nn.Module] = []
        self.plain = self._plain()
        self.value = float(measure.each(self.plain, 1, self.batch))
        self.together = together or self._room()
        self.forwards = 0  # passes of the model, in batches or not
        self.ways = ["skipping", "batched", "single"] if self.together > 1 else ["single"]

    def _plain(self) -> Any:
        """The output without changes; layers that ran exactly once can be skipped later."""
        ran: list[nn.Module] = []

        def keep(module: nn.Module, given: Any, output: Any) -> None:
            ran.append(module)
            self.outputs[module] = mapped(output, torch.clone)  # a later layer may add to it in place

        handles = [layer.module.register_forward_hook(keep) for layer in self.rerun.layers]
        try:
            output = self.rerun.run(self.call)
        finally:
            for handle in handles:
                handle.remove()
        once = len(set(ran)) == len(ran) and all(
            len(tensor) == self.batch for module in ran for tensor in tensors_in(self.outputs[module]) if tensor.dim()
        )
        self.order = ran if once else []
        return output

    def _room(self) -> int:
        """How many copies fit into one batch."""
        rows = max(
            (t.shape[1] if t.dim() > 2 else 1 for o in self.outputs.values() if (t := first_tensor(o)) is not None),
            default=64,
        )
        numbers = sum(tensor.numel() for tensor in tensors_in(self.plain)) or 1
        return max(2, min(256, ROWS // max(1, rows * self.batch), LARGEST // numbers))

    def run(self, changes: Sequence[SiteChange], edits: Edits) -> Tensor:
        """The measure under each change."""
        measures = torch.full((len(changes),), torch.nan, dtype=torch.float64)
        depths = self._depths()
        order = sorted(range(len(changes)), key=lambda at: depths.get(changes[at].place, 0))
        while order:
            way = self.ways[0]
            batch = order[: 1 if way == "single" else self.together - 1]
            first = depths.get(changes[batch[0]].place, 0)
            values = self._try([changes[at] for at in batch], edits, first, way)
            if values is None:
                del self.ways[0]
                continue
            measures[batch] = values
            order = order[len(batch) :]
        return measures

    def _try(self, changes: list[SiteChange], edits: Edits, first: int, way: str) -> Tensor | None:
        """The measures of one batch; None where this way fails."""
        if way == "single":
            self.forwards += 1
            at_sites, at_layers = edits(changes, 1)
            return self.measure.each(self.rerun.run(self.call, at_sites, at_layers), 1, self.batch)
        copies = len(changes) + 1
        unchanged = SiteChange("")
        try:
            at_sites, at_layers = edits([unchanged, *changes], copies)
            skip = self._known(first, copies) if way == "skipping" else {}
            output = self.rerun.run(self.call.times(copies), at_sites, at_layers, skip)
            self.forwards += 1
            values = self.measure.each(output, copies, self.batch)
        except RegardError:
            raise
        except Exception:  # a model that cannot take copies: it runs one by one, and an error there is the caller's
            return None
        close = CLOSE.get(_dtype(self.plain), COARSE) * max(1.0, abs(self.value))
        return values[1:] if abs(float(values[0]) - self.value) <= close else None

    def _depths(self) -> dict[str, int]:
        """The number of layers that are known before a change at a site or layer has an effect.

        A layer whose parts are called, instead of itself, has no known place: nothing is left out for its sites.
        """
        depth_of = {module: number for number, module in enumerate(self.order)}
        depths: dict[str, int] = {}
        for layer in (layer for layer in self.rerun.layers if layer.module in depth_of):
            depths |= dict.fromkeys(layer.sites, depth_of[layer.module])
            depths.setdefault(layer.path, depth_of[layer.module] + 1)  # its own rows are known, too
        return depths

    def _known(self, first: int, copies: int) -> Mapping[nn.Module, Any]:
        """What the layers before the first change return, for all copies."""
        return {
            module: mapped(
                self.outputs[module],
                lambda tensor: tensor.repeat(copies, *(1,) * (tensor.dim() - 1)) if tensor.dim() else tensor,
            )
            for module in self.order[:first]
        }


def _dtype(output: Any) -> torch.dtype:
    try:
        return logits_of(output).dtype
    except RegardError:
        tensor = first_tensor(output)
        return torch.float32 if tensor is None else tensor.dtype
