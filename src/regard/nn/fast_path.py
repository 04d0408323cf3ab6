"""What may compute in place of the modules: the one file that knows of fast paths.

A fast path is a guest: a package that names an object in the entry points `regard.fast_paths`. Models and training ask
here and nowhere else, and every None means the same: run the modules. With a guest or without, outputs and gradients
are equal up to rounding.

`regard.nn.fast_path.enabled = False` calls the modules always.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn

from regard.support.tracing import constant_when_traced

enabled = True  # whether guests are asked
GROUP = "regard.fast_paths"
# The guest of this repository. A checkout on PYTHONPATH has no metadata, and that of an editable install may be older
# than the files, so it is found by its files, too.
OWN = EntryPoint("small-models", "regard_fast.guest:GUEST", GROUP)


class Loss(NamedTuple):
    """The loss of a batch: the sum over all that counts, in nats, and how much counts."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # hides tuple.count, which is not used here
    divided: Tensor | None = None  # their quotient, where a kernel has made it

    @property
    def mean(self) -> Tensor:
        """The mean over what counts; 0 if nothing does."""
        return self.total / self.count.detach().clamp(min=1.0) if self.divided is None else self.divided


class NarrowCopy(Protocol):
    """A copy of a weight in bfloat16, which the update writes together with the weight."""

    weight: Tensor
    copy: Tensor
    version: int  # of the weight for which the copy is right

    def refresh(self) -> None:
        """Make the copy anew if other code has changed the weight."""
        ...


class FastPath(Protocol):
    """A guest. It refuses modules with hooks, under observation or a transform, and while a model is exported."""

    def run(self, module: nn.Module, *arguments: Any, **options: Any) -> Any | None:
        """What `module` returns for these arguments."""
        ...

    def loss(self, model: nn.Module, batch: Any, smoothing: float, seed: Tensor | None) -> Loss | None:
        """What `Model.loss_of` returns."""
        ...

    def copies(self, parameters: Sequence[nn.Parameter]) -> list[NarrowCopy | None]:
        """For each parameter the copy that its kernels read instead of it, if they do."""
        ...


_GUESTS: list[FastPath] = []


@constant_when_traced
def load() -> None:
    """Load the guests, once: when the first could be asked. A compiler that traces calls this and goes on."""
    _load()


@cache  # apart, because torch's compiler goes around the cache of what it traces
def _load() -> None:
    points = {point.value: point for point in [OWN, *entry_points(group=GROUP)]}
    installed = [point for point in points.values() if find_spec(point.module.partition(".")[0]) is not None]
    _GUESTS.extend(point.load() for point in installed)


def run(module: nn.Module, *arguments: Any, **options: Any) -> Any | None:
    """What a module returns for these arguments, by the first guest that can; None: run the module."""
    if enabled:
        load()
        for guest in _GUESTS:
            if (outputs := guest.run(module, *arguments, **options)) is not None:
                return outputs
    return None


def loss(model: nn.Module, batch: Any, smoothing: float, seed: Tensor | None) -> Loss | None:
    """The loss of a model for a batch, by the first guest that can; None: run the model.

    `seed`: of dropout, an integer tensor on the device; None: torch's generators draw one.
    """
    if enabled:
        load()
        for guest in _GUESTS:
            if (batch_loss := guest.loss(model, batch, smoothing, seed)) is not None:
                return batch_loss
    return None


def copies(parameters: Sequence[nn.Parameter]) -> list[NarrowCopy | None]:
    """For each parameter, the copy that the kernels of the first guest read instead of it; None: there is none."""
    load()
    if enabled and _GUESTS:
        return _GUESTS[0].copies(parameters)
    return [None] * len(parameters)
