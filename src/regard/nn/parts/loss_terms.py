"""Loss terms of mechanisms: what a module adds to the loss that a training step minimises.

Some of what a module must learn from is known only after the forward pass, such as the loss that a sampled choice led
to. Inside `collecting`, a module offers a function of the losses of the examples; the training step calls it and
backpropagates its result together with the loss. The reported loss is without these terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import Tensor

# From the losses (b,) of the examples, each a sum in nats, and how much counts in each, (b,), both without gradient, to
# a sum over the batch. Both have one entry, (1,), where losses are known for the whole batch only.
LossTerm = Callable[[Tensor, Tensor], Tensor]

_COLLECTED: list[list[LossTerm]] = []


@runtime_checkable
class LearnsFromLoss(Protocol):
    """A module that offers loss terms. After each step it is told the mean loss of all batches of the step."""

    def observe_loss(self, mean: Tensor) -> None:
        """Note the mean loss, a scalar."""


@contextmanager
def collecting() -> Iterator[list[LossTerm]]:
    """Inside, terms that are offered are appended to the list."""
    terms: list[LossTerm] = []
    _COLLECTED.append(terms)
    try:
        yield terms
    finally:
        _COLLECTED.pop()


def offer(term: LossTerm) -> None:
    """Offer a term to the innermost `collecting`; without one, nothing happens."""
    if _COLLECTED:
        _COLLECTED[-1].append(term)
