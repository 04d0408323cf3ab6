"""Which inputs the answer comes from, by methods that often disagree: gradients, integrated gradients, attention.

    gradient × input        Σ_d x_d · ∂y/∂x_d
    integrated gradients    Σ_d (x_d − x'_d) · ∫₀¹ ∂y/∂x_d (x' + a (x − x')) da,     x' a baseline without information

The latter sum to y(x) − y(x') (completeness); what the numerical integral leaves is printed as the gap. The integral is
taken by Gauss–Legendre quadrature, whose points run as copies of one batch. Agreement of two methods is the rank
correlation (Spearman) of the sizes of their scores.

Papers: Sundararajan et al. 2017 (integrated gradients); Jain and Wallace 2019, Neely et al. 2021 (agreement).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import BadValue, RegardError
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import model_call, parts_of_output
from regard.observation.causes.input_keys import described_keys, first_input_keys, observed_run
from regard.observation.causes.input_rows import InputRows
from regard.observation.causes.maps import grid_of, on_grid, row_weights
from regard.observation.causes.measures import Answer, Measure, Measured, Words, check_classes, measure_of
from regard.observation.causes.rerun import Rerun
from regard.observation.causes.result import plain_numbers
from regard.observation.seen import Seen
from regard.support.arguments import whole_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTEGRATED, TIMES, ATTENTION, ROLLOUT = "integrated gradients", "gradient × input", "attention", "rollout"
NUMBERS = 1 << 25  # numbers in flight in one batch of points
CLOSE = 0.01  # a gap, relative to what is explained, at which the integral is fine enough
FINER = 16  # times the first number of points, at most


@dataclass(frozen=True, eq=False)
class InputAttributions:
    """Scores of the inputs by several methods, (positions,) each; for pictures (patches,)."""

    scores: dict[str, Tensor]
    measured: str
    value: float  # of the measure
    baseline: float  # of the measure without information
    gap: float  # value − baseline − Σ integrated gradients
    tokens: list[str] | None = None
    grid: tuple[int, int] | None = None  # of patches
    pixels: Tensor | None = field(default=None, repr=False)  # (h,w): integrated gradients of a picture
    missing: tuple[str, ...] = ()  # why a method is not here

    @property
    def relative_gap(self) -> float:
        """The gap relative to the difference that should be explained."""
        span = abs(self.value - self.baseline)
        return abs(self.gap) / span if span else float(self.gap != 0)

    def agreement(self) -> dict[tuple[str, str], float]:
        """The rank correlation of every pair of methods; NaN where one gives all inputs the same score."""
        names = list(self.scores)
        pairs = [(first, second) for at, first in enumerate(names) for second in names[at + 1 :]]
        return {(first, second): rank_correlation(self.scores[first], self.scores[second]) for first, second in pairs}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {
            "kind": "attributions",
            "measured": self.measured,
            "value": self.value,
            "baseline": self.baseline,
            "gap": self.gap,
            "tokens": self.tokens,
            "grid": self.grid,
            "missing": list(self.missing),
            "scores": {name: plain_numbers(scores) for name, scores in self.scores.items()},
            "agreement": [
                {"methods": list(pair), "rank_correlation": value if np.isfinite(value) else None}
                for pair, value in self.agreement().items()
            ],
        }

    def plot(self, **options: Any) -> Figure:
        """The methods side by side (`causes.figures.plot_attributions`)."""
        from regard.observation.causes.input_figures import plot_attributions

        return plot_attributions(self, **options)

    def __repr__(self) -> str:
        lines = [
            f"<{self.measured}: {self.value:.4f}, without information {self.baseline:.4f}; "
            f"completeness gap {self.gap:+.1e} ({self.relative_gap:.1%})"
        ]
        for name, scores in self.scores.items():
            order = scores.abs().argsort(descending=True, stable=True)[:4].tolist()
            strongest = (f"{self.tokens[at]!r}" if self.tokens and at < len(self.tokens) else str(at) for at in order)
            lines.append(f"  {name}: {', '.join(strongest)}")
        lines += [
            f"  {first} and {second} agree by {value:+.2f}" for (first, second), value in self.agreement().items()
        ]
        return "\n".join([*lines, *(f"  {why}" for why in self.missing)]) + ">"


def attributions(
    seen: Seen,
    inputs: Any = None,
    *,
    measure: Measured = "logit",
    answer: Answer = None,
    other: Answer = None,
    position: int = -1,
    words: Words | None = None,
    baseline: str | int | Tensor = "mean",
    steps: int = 32,
    tokens: Sequence[str] | None = None,
    example: int = 0,
) -> InputAttributions:
    """Scores of tokens or pixels for an answer, by gradients and by attention.

    Args:
        seen: what was observed of the model.
        inputs: what the model is called with; None: what was observed.
        measure: "logit", "loss", "probability", or a function of the model's output that gives a number.
        answer: a class or token; by default what the model says.
        other: a class or token whose logit is subtracted.
        position: of the answer, for models that answer at every position.
        words: turns the number of a class or token into text, such as `tokenizer.decode`.
        baseline: rows without information: "mean" (of the example's rows), "zero", a token, or a tensor. At zero the
            gradient of a model that begins with a norm is huge, and the integral needs many points.
        steps: points of the integral; doubled, up to sixteen times as many, while the gap is above one per cent.
        tokens: labels of the positions.
        example: which example of the batch.
    """
    model = Rerun(seen).model
    check_classes(model, measure, answer)
    call = model_call("inputs", inputs, seen).example(example)
    steps = whole_number("steps", steps, 1)
    entering = InputRows(model, call)
    with torch.no_grad():
        plain = model(*call.args, **call.kwargs)
    judged = measure_of(measure, answer, other, position, plain, words=words)
    x, start = entering.rows, entering.baseline(baseline)
    value, slope = _slopes(entering, x, judged)
    without = float(_numbers(entering, start, judged))
    span = float(value) - without
    most = steps * FINER
    while True:
        integrated = entering.flat((x - start) * _mean_slope(entering, start, judged, steps)).sum(-1)[0].double().cpu()
        gap = span - float(integrated.sum())
        if abs(gap) <= CLOSE * abs(span) or steps >= most:
            break
        steps *= 2
    times = entering.flat(x * slope).sum(-1)[0].double().cpu()
    labels = None if tokens is None else [str(token) for token in tokens]
    scores = {INTEGRATED: integrated, TIMES: times}
    observed = observed_run(model, call)
    picture, grid, pixels, missing = entering.picture, None, None, []
    if picture is not None:
        grid = grid_of(observed, picture)
        pixels = integrated.view(picture)
        if grid is not None:
            scores = {name: on_grid(scored.view(picture), grid) for name, scored in scores.items()}
    length = len(next(iter(scores.values())))
    try:
        firsts = first_input_keys(entering, length, grid)
        scores |= _by_attention(observed, firsts, length, position if _many(plain) else None)
    except RegardError as why:
        missing.append(f"attention: {why}")
    return InputAttributions(scores, judged.words, float(value), without, gap, labels, grid, pixels, tuple(missing))


def rank_correlation(one: Tensor, two: Tensor) -> float:
    """Spearman's rank correlation of the sizes of two rows of scores."""
    from scipy.stats import rankdata

    ranks = np.stack([rankdata(scores.abs().double().cpu().numpy()) for scores in (one, two)])
    ranks -= ranks.mean(1, keepdims=True)
    sizes = np.sqrt((ranks**2).sum(1))
    return float((ranks[0] * ranks[1]).sum() / sizes.prod()) if sizes.all() else float("nan")


def _quadrature(steps: int) -> tuple[Tensor, Tensor]:
    """Points and weights of Gauss–Legendre quadrature from 0 to 1."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return torch.from_numpy((points + 1) / 2), torch.from_numpy(weights / 2)


def _mean_slope(entering: InputRows, start: Tensor, measure: Measure, steps: int) -> Tensor:
    """The gradient, averaged along the straight way from `start` to the example's rows."""
    x = entering.rows
    points, weights = _quadrature(steps)
    mean = torch.zeros_like(x)
    few = max(1, min(64, NUMBERS // max(1, x.numel() * 64)))
    for block, share in zip(points.split(few), weights.split(few), strict=True):
        rows = start + block.to(x).view(-1, *(1,) * (x.dim() - 1)) * (x - start)
        slopes = _slopes(entering, rows, measure)[1]
        mean += (share.to(x).view(-1, *(1,) * (x.dim() - 1)) * slopes).sum(0, keepdim=True)
    return mean


def _slopes(entering: InputRows, rows: Tensor, measure: Measure) -> tuple[Tensor, Tensor]:
    """The measure of each copy, and its gradient with respect to the rows of that copy."""
    leaf = rows.detach().clone().requires_grad_()
    # cuDNN has a backward pass of recurrent layers only in training mode, which would also apply dropout.
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        output = entering.run(leaf)
        if measure.function is None:
            numbers = measure.tensor(output, len(rows), 1)
        else:
            measures = [measure.function(copy) for copy in parts_of_output(output, len(rows), 1)]
            if not all(
                isinstance(number, Tensor) and number.numel() == 1 and number.requires_grad for number in measures
            ):
                raise BadValue("measure: expected a tensor of one number, computed from the output with gradients.")
            numbers = torch.stack([number.reshape(()) for number in measures])
        (slope,) = torch.autograd.grad(numbers.sum(), leaf)
    return numbers.detach().double().cpu(), slope.detach()


@torch.no_grad()
def _numbers(entering: InputRows, rows: Tensor, measure: Measure) -> Tensor:
    return measure.each(entering.run(rows), len(rows), 1)


def _many(output: Any) -> bool:
    """Whether a model answers at every position."""
    try:
        return logits_of(output).dim() == 3
    except RegardError:
        return False


def _by_attention(seen: Seen, firsts: dict[str, int], length: int, position: int | None) -> dict[str, Tensor]:
    """The last layer's weights of the answer's row, mean over heads, and the rollout of that row."""
    if not firsts:
        raise BadValue(f"there is no site whose keys are the {length} inputs ({described_keys(seen)}).")
    last, lowest = list(firsts)[-1], next(iter(firsts))
    scores = {ATTENTION: row_weights(seen[last].weights()[0].mean(0), firsts[last], length, position)}
    with contextlib.suppress(RegardError):  # layers that are not one stack have no rollout
        rolled = seen.rollout()  # of a decoder: what it read, then what the encoder read
        first = rolled.shape[1] - seen[lowest].shape()[3] + firsts[lowest]
        if first >= 0:
            scores[ROLLOUT] = row_weights(rolled, first, length, position)
    return scores
