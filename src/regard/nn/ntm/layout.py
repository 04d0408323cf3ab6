"""The sizes of a machine, and the columns of its head parameters."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MachineLayout:
    """A machine of K = read + write heads over slots of `width`; the read heads come first.

    One matrix computes the parameters of all heads from the controller's hidden vector. Sections with the same
    activation are adjacent: keys, add | erase, gate (sigmoid) | strength, gamma (softplus) | shift (softmax).
    """

    read_heads: int
    write_heads: int
    slots: int
    width: int
    shift_range: int
    hidden: int
    lstm: bool

    @property
    def heads(self) -> int:
        return self.read_heads + self.write_heads

    @property
    def offsets(self) -> int:
        """The number of offsets by which a head can move in one step: −r … r."""
        return 2 * self.shift_range + 1

    @property
    def reads(self) -> int:
        """The width of the reads of all heads together."""
        return self.read_heads * self.width

    @property
    def fed_back(self) -> int:
        """The number of columns of [reads, hidden] that are fed back to the controller in the next step."""
        return self.reads + self.hidden if self.lstm else self.reads

    @property
    def drive(self) -> int:
        """The width of the controller's projected input: four gates, or one layer."""
        return 4 * self.hidden if self.lstm else self.hidden

    @property
    def sections(self) -> dict[str, slice]:
        """The columns of each kind of head parameter."""
        sizes = {
            "keys": self.heads * self.width,
            "add": self.write_heads * self.width,
            "erase": self.write_heads * self.width,
            "gate": self.heads,
            "strength": self.heads,
            "gamma": self.heads,
            "shift": self.heads * self.offsets,
        }
        columns, start = {}, 0
        for name, size in sizes.items():
            columns[name] = slice(start, start + size)
            start += size
        return columns

    @property
    def parameters(self) -> int:
        """The number of head parameters in one step."""
        return int(self.sections["shift"].stop)

    def rows(self, name: str, parameters: Tensor) -> Tensor:
        """Return one section of the parameters (…,P) with an axis for the heads, (…,heads,size)."""
        heads = self.write_heads if name in ("add", "erase") else self.heads
        columns = self.sections[name]
        width = columns.stop - columns.start  # a number: inside a traced scan the width of `parameters` is a symbol
        section = parameters.narrow(-1, columns.start, width)
        rows: Tensor = section.unflatten(-1, (heads, width // heads if heads else self.width))
        return rows
