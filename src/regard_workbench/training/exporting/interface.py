"""A model as a function of named tensors: what an exported graph takes and gives.

A model reads a `Batch`; a graph reads tensors. `GraphModel` takes the tensors of a batch by position, and `Interface`
names them: a stream's data, where it is real (`…_keep`), edges, and for models that write, the targets so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from regard_workbench.models import Model
from regard_workbench.tasks.answers.answer import Decoded
from regard_workbench.tasks.parts.batch import Batch, Stream

PARTS = ("data", "keep", "edges")


@dataclass(frozen=True)
class Interface:
    """The inputs of a graph, by name, in order: the part of a batch that each of them is."""

    inputs: Mapping[str, tuple[str, str, str]]  # name: ("streams" or "answers", name of the stream, its part)
    offset: bool = False  # the last input is the batch's `offset`

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return [*self.inputs, *(["offset"] if self.offset else [])]

    def tensors(self, batch: Batch) -> list[Tensor]:
        """The inputs of a batch."""
        tensors = []
        for group, stream, field in self.inputs.values():
            holder: Stream = getattr(batch, group)[stream]
            tensor = getattr(holder, field)
            if tensor is None:  # every position is real
                tensor = torch.ones(holder.data.shape[:2], dtype=torch.bool, device=holder.data.device)
            tensors.append(tensor)
        if self.offset:
            assert batch.offset is not None
            tensors.append(batch.offset)
        return tensors

    def batch(self, tensors: Sequence[Tensor]) -> Batch:
        """The batch that these inputs are of."""
        groups: dict[str, dict[str, dict[str, Tensor]]] = {"streams": {}, "answers": {}}
        for (group, stream, field), tensor in zip(self.inputs.values(), tensors, strict=False):
            groups[group].setdefault(stream, {})[field] = tensor
        streams, answers = (
            {name: Stream(**fields) for name, fields in groups[group].items()} for group in ("streams", "answers")
        )
        return Batch(streams, answers, offset=tensors[-1] if self.offset else None)


def interface_of(model: Model, batch: Batch) -> Interface:
    """What a graph of the model takes, for batches like this one."""
    inputs: dict[str, tuple[str, str, str]] = {}
    groups = {"streams": batch.streams, "answers": _read_answers(model, batch)}
    for group, streams in groups.items():
        for name, stream in streams.items():
            for field in PARTS:
                if getattr(stream, field) is not None:
                    plain = name.replace(" ", "_").replace("-", "_")
                    inputs[plain if field == "data" else f"{plain}_{field}"] = (group, name, field)
    return Interface(inputs, offset=batch.offset is not None)


def _read_answers(model: Model, batch: Batch) -> dict[str, Stream]:
    """The targets that a forward pass reads: those of a decoder, each of whose rows sees the targets before it."""
    if not isinstance(model.problem.answer, Decoded) or not batch.answers:
        return {}
    name, stream = next(iter(batch.answers.items()))
    return {name: replace(stream, keep=None)}


class GraphModel(nn.Module):
    """A model called with tensors instead of a batch; it returns a flat tuple of tensors."""

    def __init__(self, model: Model, interface: Interface) -> None:
        super().__init__()
        self.model, self.interface = model, interface

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The outputs of the model's head."""
        return outputs_of(self.model(self.interface.batch(tensors)))


def outputs_of(outputs: Any) -> tuple[Tensor, ...]:
    """The tensors in the outputs of a head, in order."""
    return tuple(leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, Tensor))
