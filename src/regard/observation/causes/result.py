"""The result of patching: a number for each head, layer or position, ready for a figure or for JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plain_numbers(tensor: Tensor) -> Any:
    """A tensor as nested lists of finite numbers, None where there is none: what JSON can hold."""
    if tensor.dim():
        return [plain_numbers(row) for row in tensor]
    value = float(tensor)
    return value if math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class PatchResult:
    """The measure under each patch. Rows are sites or layers, then heads (at="heads"), then positions, where given."""

    values: Tensor  # (sites[, heads][, positions]), float64; NaN where there is no such head or position
    at: str
    names: list[str]  # of sites or layers
    positions: list[int] | None  # None: all positions were patched together
    measured: str
    clean: float
    corrupted: float
    into: str = "corrupted"
    tokens: list[str] | None = None
    forwards: int = 0  # passes of the model that it took
    way: str = ""  # how: "skipping", "batched" or "single"
    paths: str = ""  # of path patching: where the paths end, in words
    doubt: str = ""  # why there are no shares: equal answers, a small difference, or one of the wrong sign

    @property
    def change(self) -> Tensor:
        """What a patch adds to the measure of the run that it is put into."""
        return self.values - (self.corrupted if self.into == "corrupted" else self.clean)

    @property
    def recovered(self) -> Tensor:
        """How much of the runs' difference a patch makes up for: 0 nothing, 1 all of it; NaN where there is `doubt`."""
        span = self.clean - self.corrupted if self.into == "corrupted" else self.corrupted - self.clean
        return torch.full_like(self.values, torch.nan) if self.doubt else self.change / span

    def best(self, count: int = 8) -> list[dict[str, Any]]:
        """The patches with the largest effect, as plain data."""
        flat = self.change.flatten()
        order = flat.abs().nan_to_num(-1.0).argsort(descending=True, stable=True)[:count].tolist()
        return [self._cell(number) for number in order if not torch.isnan(flat[number])]

    def _cell(self, number: int) -> dict[str, Any]:
        index = [int(coordinate) for coordinate in torch.unravel_index(torch.tensor(number), self.values.shape)]
        cell: dict[str, Any] = {"site": self.names[index[0]]}
        if self.at == "heads":
            cell["head"] = index[1]
        if self.positions is not None:
            cell["position"] = self.positions[index[-1]]
            if self.tokens is not None and cell["position"] < len(self.tokens):
                cell["token"] = self.tokens[cell["position"]]
        at = tuple(index)
        return cell | {"value": float(self.values[at]), "recovered": plain_numbers(self.recovered[at])}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "kind": "patch",
            "at": self.at,
            "into": self.into,
            "names": self.names,
            "positions": self.positions,
            "tokens": self.tokens,
            "measured": self.measured,
            "clean": self.clean,
            "corrupted": self.corrupted,
            "values": plain_numbers(self.values),
            "recovered": plain_numbers(self.recovered),
            "paths": self.paths,
            "doubt": self.doubt,
        }

    def plot(self, **options: Any) -> Figure:
        """A heat map fit for a paper (`causes.figures.plot_patches`)."""
        from regard.observation.causes.figures import plot_patches

        return plot_patches(self, **options)

    def __repr__(self) -> str:
        kind = f"paths to {self.paths}" if self.paths else f"{self.at} patched into {self.into}"
        lines = [
            f"<{kind}: {self.measured}, clean {self.clean:.4f}, corrupted {self.corrupted:.4f}; "
            f"{self.values.isfinite().sum()} patches in {self.forwards} forward passes"
        ]
        for cell in self.best(5):
            head = f" head {cell['head']}" if "head" in cell else ""
            token = f" {cell['token']!r}" if "token" in cell else ""
            where = f" position {cell['position']}{token}" if "position" in cell else ""
            share = "" if cell["recovered"] is None else f", recovered {cell['recovered']:+.1%}"
            lines.append(f"  {cell['site']}{head}{where}: {cell['value']:.4f}{share}")
        if self.doubt:
            lines.append(f"  No shares: {self.doubt}.")
        return "\n".join(lines) + ">"
