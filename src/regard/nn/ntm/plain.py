"""The steps of a machine in plain torch: the reference of the fast forms, and the path of second derivatives.

A step: the controller gets the input and the previous reads; all heads address the memory; the write heads erase, then
add; the read heads read the new memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.nn.ntm import addressing
from regard.nn.ntm.layout import MachineLayout
from regard.nn.parts.steps import run_steps


class Carried(NamedTuple):
    """The state between steps."""

    seen: Tensor  # (b, R·m + hidden): the reads, then the controller's hidden vector
    cell: Tensor  # (b, hidden) of an LSTM; (b,0) of a feed-forward controller
    weights: Tensor  # (b,K,n), the read heads first
    memory: Tensor  # (b,n,m)


class Weights(NamedTuple):
    """The trained matrices."""

    recurrent: Tensor  # (drive, fed_back)
    heads: Tensor  # (P, hidden)
    bias: Tensor  # (P,)


def sequence(
    layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried, keep: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the states (t+1,b,·) around each step of drive (t,b,·), seen, cell and weights, and the last memory.

    Where `keep` (t,b) is False the state stays.
    """

    def one(carried: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        current = Carried(*carried)
        after = step(layout, given[0], trained, current)
        if keep is not None:
            real = given[1]
            pairs = zip(after, current, strict=True)
            after = Carried(*[torch.where(real.view(-1, *[1] * (new.dim() - 1)), new, old) for new, old in pairs])
        return after, after[:3]

    if drive.shape[0] == 0:
        return before.seen[None], before.cell[None], before.weights[None], before.memory
    last, outputs = run_steps(one, before, [drive] if keep is None else [drive, keep])
    read_hidden, cell, weights = (
        torch.cat([first[None], stacked]) for first, stacked in zip(before, outputs, strict=False)
    )
    return read_hidden, cell, weights, Carried(*last).memory


def step(layout: MachineLayout, drive: Tensor, trained: Weights, before: Carried) -> Carried:
    """Compute one step, (b,·) each. `drive` is the projected input of the controller."""
    activation = drive
    if layout.fed_back:  # a product over no columns cannot be traced inside a scan
        activation = drive + before.seen[:, : layout.fed_back] @ trained.recurrent.mT
    hidden, cell = _controller(layout, activation, before)
    parameters = F.linear(hidden, trained.heads, trained.bias)
    weights = _addresses(layout, parameters, before)
    reading, writing = weights.split([layout.read_heads, layout.write_heads], 1)
    memory = before.memory
    erase, add = layout.rows("erase", parameters).sigmoid(), layout.rows("add", parameters)
    for head in range(layout.write_heads):
        memory = addressing.erased(memory, writing[:, head], erase[:, head])
    memory = memory + torch.matmul(writing.mT, add)
    reads = [addressing.read(memory, reading[:, head]) for head in range(layout.read_heads)]
    return Carried(torch.cat([*reads, hidden], 1), cell, weights, memory)


def _controller(layout: MachineLayout, activation: Tensor, before: Carried) -> tuple[Tensor, Tensor]:
    """Return the controller's hidden vector and cell. The gates of an LSTM: output, input, forget, candidate."""
    if not layout.lstm:
        return activation.tanh(), before.cell
    out, enter, forget, candidate = activation.chunk(4, 1)
    cell = forget.sigmoid() * before.cell + enter.sigmoid() * candidate.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _addresses(layout: MachineLayout, parameters: Tensor, before: Carried) -> Tensor:
    """Return the new weights of the heads, (b,K,n)."""
    keys = layout.rows("keys", parameters)
    strength = F.softplus(layout.rows("strength", parameters))
    gate = layout.rows("gate", parameters).sigmoid()
    kernel = layout.rows("shift", parameters).softmax(-1)
    gamma = 1 + F.softplus(layout.rows("gamma", parameters))
    addresses = []
    for head in range(layout.heads):
        weights = addressing.content_address(before.memory, keys[:, head], strength[:, head])
        weights = addressing.interpolate(weights, before.weights[:, head], gate[:, head])
        weights = addressing.shift(weights, kernel[:, head])
        addresses.append(addressing.sharpen(weights, gamma[:, head]))
    return torch.stack(addresses, 1)
