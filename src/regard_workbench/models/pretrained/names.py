"""Tables of tensor names: each line says which tensor of a file is which tensor, or tensors, of regard's model.

One table serves both ways. `theirs` and `ours` name modules, whose weight and bias are meant, or tensors. Several
`ours` lie one after the other in one tensor of the file (GPT-2 keeps queries, keys and values in one).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import BadValue

KINDS = (".weight", ".bias")
NAMED = 5  # tensors named in a message


@dataclass(frozen=True)
class Line:
    """One line of a table. `transposed`: the file holds the transpose; `row`: the file has a leading axis of size 1."""

    theirs: str
    ours: tuple[str, ...]
    transposed: bool = False
    row: bool = False

    def from_theirs(self, tensor: Tensor) -> Tensor:
        """Our layout of their tensor."""
        tensor = tensor.squeeze(0) if self.row else tensor
        return tensor.t() if self.transposed and tensor.dim() == 2 else tensor

    def to_theirs(self, tensor: Tensor) -> Tensor:
        """Their layout of our tensor."""
        tensor = tensor.t() if self.transposed and tensor.dim() == 2 else tensor
        return tensor[None] if self.row else tensor


def line(theirs: str, *ours: str, transposed: bool = False, row: bool = False) -> Line:
    """A line of a table."""
    return Line(theirs, ours, transposed, row)


def for_layers(count: int, lines: Iterable[Line]) -> list[Line]:
    """The lines of each layer: {i} is its number."""
    lines = list(lines)
    return [
        Line(
            table_line.theirs.format(i=i),
            tuple(name.format(i=i) for name in table_line.ours),
            table_line.transposed,
            table_line.row,
        )
        for i in range(count)
        for table_line in lines
    ]


class NameTable:
    """The lines of a model, resolved to single tensors of that model."""

    def __init__(self, lines: Sequence[Line], sizes: Mapping[str, Tensor]) -> None:
        self.sizes = {name: tuple(tensor.shape) for name, tensor in sizes.items()}
        self.lines: list[Line] = []
        for table_line in lines:
            if all(name in self.sizes for name in table_line.ours):
                self.lines.append(table_line)
                continue
            for kind in KINDS:
                names = tuple(name + kind for name in table_line.ours)
                if all(name in self.sizes for name in names):
                    self.lines.append(Line(table_line.theirs + kind, names, table_line.transposed, table_line.row))
        covered = {name for table_line in self.lines for name in table_line.ours}
        left = [name for name in self.sizes if name not in covered]
        if left:
            raise BadValue(f"weights: no tensor of the file stands for {listed(left)} of this model.")

    def check(self, where: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse files whose tensors are missing or of another size, before any is read."""
        missing = [table_line.theirs for table_line in self.lines if table_line.theirs not in shapes]
        if missing:
            raise BadValue(f"{where}: {len(missing)} tensors are missing: {listed(missing)}.")
        for table_line in self.lines:
            wanted = self._shape(table_line)
            if tuple(shapes[table_line.theirs]) != wanted:
                raise BadValue(
                    f"{where}: {table_line.theirs} is {tuple(shapes[table_line.theirs])}, but config.json asks for "
                    f"{wanted}. Is it the config.json of these weights?"
                )

    def to_ours(self, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Our tensors by our names; `read` gives one of the file's."""
        tensors: dict[str, Tensor] = {}
        for table_line in self.lines:
            tensor = table_line.from_theirs(read(table_line.theirs))
            pieces = (
                tensor.split([self.sizes[name][0] for name in table_line.ours])
                if len(table_line.ours) > 1
                else (tensor,)
            )
            tensors.update(zip(table_line.ours, pieces, strict=True))
        return tensors

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The file's tensors by its names."""
        tensors = {}
        for table_line in self.lines:
            pieces = [ours[name].detach() for name in table_line.ours]
            tensor = table_line.to_theirs(torch.cat(pieces) if len(pieces) > 1 else pieces[0])
            tensors[table_line.theirs] = tensor.clone().contiguous()
        return tensors

    def _shape(self, one: Line) -> tuple[int, ...]:
        first = self.sizes[one.ours[0]]
        ours = (sum(self.sizes[name][0] for name in one.ours), *first[1:]) if len(one.ours) > 1 else first
        return tuple(one.to_theirs(torch.empty(ours, device="meta")).shape)


def listed(names: Sequence[str]) -> str:
    """The first names of a list, for a message."""
    shown = ", ".join(name[:100] for name in names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of the patterns (regular expressions for the whole name)."""
    return any(re.fullmatch(pattern, name) for pattern in patterns)
