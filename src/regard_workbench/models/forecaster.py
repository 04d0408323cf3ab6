"""`forecaster`: causal attention over patches of a time series, each column by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import BadValue
from regard.nn import positions as encodings
from regard.support.arguments import share, whole_number
from regard_workbench.models.linear_forecaster import LinearMap
from regard_workbench.models.parts.model import Model, model
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import Forecast
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.shown import Shown
from regard_workbench.tasks.parts.streams import Vectors

SMALLEST = 1e-5  # added to the variance of a window, so that a constant one can be divided by it


@model("forecaster", gives=("future",), reads=(Vectors,))
class Forecaster(Model):
    """Cuts each column of a window into overlapping patches, attends over them and maps all rows to the next values.

    Columns share all weights and do not see each other. A window is brought to mean 0 and variance 1 before it is read,
    and the forecast is brought back.

    With `linear`, a linear map of the window gives the forecast, and the layers add what it misses: nothing before
    training, since what maps the rows to values begins at zero. `--init-from` a run of `linear-forecaster` then begins
    at that yardstick.

    Paper: Nie et al. 2023 (PatchTST); here with causal attention, so that a patch sees only what came before it.
    Instance normalisation: Kim et al. 2022.

    Args:
        patch: values of a patch
        stride: steps from one patch to the next
        normalize: whether a window is brought to mean 0 and variance 1
        linear: whether the layers correct the forecast of a linear map
        head_dropout: share of the rows' numbers dropped before they are mapped to the forecast
    """

    takes_attention: ClassVar[str] = "each layer's causal attention among the patches"
    attention_default: ClassVar[str] = "causal"
    shows: ClassVar[dict[str, str]] = {"stack.layers.-1.attention": "{name} of the last layer"}

    def __init__(
        self,
        problem: Problem,
        *,
        patch: int = 16,
        stride: int = 8,
        dim: int = 64,
        layers: int = 3,
        num_heads: int = 4,
        attention: str | None = None,
        positions: str = "learned",
        dropout: float = 0.2,
        attention_dropout: float = 0.0,
        head_dropout: float = 0.0,
        norm: str = "pre",
        hidden: int | None = None,
        normalize: bool = True,
        linear: bool = False,
    ) -> None:
        super().__init__(problem)
        assert isinstance(problem.answer, Forecast)
        context = problem.inputs.length
        assert context is not None, "a series says how far it looks back"
        self.context, self.normalize = context, normalize
        self.patch, self.stride = whole_number("patch", patch, 1), whole_number("stride", stride, 1)
        if self.stride > self.patch:
            raise BadValue(f"stride: expected at most patch={patch}, got {stride}: values would be left out.")
        # As in the paper, the last value is repeated once more for a stride, so that the newest values are in two
        # patches like all others; where patches do not fill the window, its first value is repeated.
        self.before = max(0, self.patch - context - self.stride, (self.patch - context) % self.stride)
        self.count = (self.before + context + self.stride - self.patch) // self.stride + 1
        self.embed = nn.Linear(self.patch, dim)
        self.positions = encodings.build(positions, dim, self.count)
        self.dropout = nn.Dropout(share("dropout", dropout))
        self.stack = Stack(
            dim,
            layers,
            attention or self.attention_default,
            causal=True,
            num_heads=num_heads,
            norm=norm,
            dropout=dropout,
            attention_dropout=attention_dropout,
            hidden=hidden,
        )
        self.values = nn.Linear(self.count * dim, problem.answer.horizon)
        self.map: nn.Module | None = None
        if linear:
            self.map = LinearMap(context, problem.answer.horizon)
            nn.init.zeros_(self.values.weight)
            nn.init.zeros_(self.values.bias)
        self.head_dropout = nn.Dropout(share("head_dropout", head_dropout))
        self.head = problem.answer.head()

    def forward(self, batch: Batch) -> Any:
        weight = self.embed.weight
        window = batch.inputs.to(weight.dtype)
        if window.shape[1] != self.context:
            raise BadValue(f"batch: this forecaster reads windows of {self.context} steps, got {window.shape[1]}.")
        # In at least float32: the mean of a window is often far larger than its changes.
        wide = batch.inputs.to(torch.promote_types(batch.inputs.dtype, torch.float32))
        center, spread = torch.zeros_like(wide[:, :1]), torch.ones_like(wide[:, :1])
        if self.normalize:
            center = wide.mean(1, keepdim=True)
            spread = (wide.var(1, keepdim=True, correction=0) + SMALLEST).sqrt()
        columns = ((wide - center) / spread).to(weight.dtype).transpose(1, 2)  # (b,c,n)
        rows = self.embed(self.patches(columns).flatten(0, 1))  # (b·c,p,dim)
        rows = self.stack(self.dropout(self.positions(rows)))
        forecast = self.values(self.head_dropout(rows.flatten(1)))  # (b·c,horizon)
        forecast = forecast.unflatten(0, columns.shape[:2]).transpose(1, 2)
        around = center if self.map is None else self.map(batch.inputs)
        return self.head(forecast * spread + around, batch)

    def patches(self, columns: Tensor) -> Tensor:
        """Overlapping pieces of each column: (b,c,n) → (b,c,patches,patch)."""
        return F.pad(columns, (self.before, self.stride), mode="replicate").unfold(-1, self.patch, self.stride)

    def relabel(self, shown: Shown) -> Shown:
        """The steps of each patch, by its first and its last."""
        if len(shown.pieces) != self.context:
            return shown
        first = [min(max(0, n * self.stride - self.before), self.context - 1) for n in range(self.count)]
        last = [min(n * self.stride - self.before + self.patch, self.context) - 1 for n in range(self.count)]
        names = [f"{shown.pieces[a]} – {shown.pieces[b]}" for a, b in zip(first, last, strict=True)]
        grid = None if shown.grid is None else (1, self.count)
        return replace(shown, pieces=names, called="patches", grid=grid)
