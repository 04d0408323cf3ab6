"""The logit lens: what a model would say if it stopped after each layer.

The rows that leave a layer take the place of those that leave the last one, and the rest of the model (final norm,
vocabulary head, pooler) runs as it is. So the lens needs to know nothing about a model's head. All layers run as copies
of one batch.

Source: nostalgebraist 2020, interpreting GPT: the logit lens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue, Unsupported
from regard.observation.ablation import logits_of
from regard.observation.causes.copies import first_tensor, model_call
from regard.observation.causes.measures import answers_with_a_class
from regard.observation.causes.rerun import LayerEdit, Rerun, RunRecording
from regard.observation.causes.result import plain_numbers
from regard.observation.seen import Seen
from regard.support.arguments import described

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BEFORE = "embedding"  # the name of the rows before the first layer


@dataclass(frozen=True, eq=False)
class LogitLens:
    """The logits after each layer, beginning with the rows before the first."""

    names: list[str]
    logits: Tensor  # (layers + 1, positions, classes) of one example; one position for a model with one answer
    words: Callable[[int], str] = str  # the text of a class or token
    tokens: list[str] | None = None

    @property
    def probabilities(self) -> Tensor:
        """The same as probabilities."""
        return self.logits.softmax(-1)

    def top(self, position: int = -1, count: int = 5) -> list[list[tuple[str, float]]]:
        """For each layer the most likely answers at a position, with their probabilities."""
        shares = self.probabilities[:, position]
        values, ids = shares.topk(min(count, shares.shape[-1]), -1)
        return [
            [(self.words(token), value) for token, value in zip(row, many, strict=True)]
            for row, many in zip(ids.tolist(), values.tolist(), strict=True)
        ]

    def rank(self, answer: int, position: int = -1) -> list[int]:
        """The rank of an answer after each layer, 0 for the first."""
        rows = self.logits[:, position]
        return (rows > rows[:, answer : answer + 1]).sum(-1).tolist()

    def to_json(self, count: int = 5) -> dict[str, Any]:
        """The most likely answers of every layer and position as plain data."""
        values, ids = self.probabilities.topk(min(count, self.logits.shape[-1]), -1)
        return {
            "kind": "lens",
            "names": self.names,
            "tokens": self.tokens,
            "ids": ids.tolist(),
            "texts": [[[self.words(token) for token in row] for row in layer] for layer in ids.tolist()],
            "probabilities": plain_numbers(values),
        }

    def plot(self, **options: Any) -> Figure:
        """The most likely answer of every layer at every position (`causes.figures.plot_lens`)."""
        from regard.observation.causes.figures import plot_lens

        return plot_lens(self, **options)

    def __repr__(self) -> str:
        lines = [
            f"  {name}: {', '.join(f'{text!r} {share:.1%}' for text, share in row)}"
            for name, row in zip(self.names, self.top(count=3), strict=True)
        ]
        return "\n".join(["<logit lens, last position:", *lines]) + ">"


def logit_lens(
    seen: Seen,
    inputs: Any = None,
    *,
    words: Callable[[int], str] | None = None,
    tokens: Sequence[str] | None = None,
    example: int = 0,
) -> LogitLens:
    """What the model would say after each layer.

    Args:
        seen: what was observed of the model.
        inputs: what the model is called with; None: what was observed.
        words: turns the number of a class or token into text, such as `tokenizer.decode`.
        tokens: labels of the positions, for figures.
        example: which example of the batch.
    """
    rerun = Rerun(seen)
    if not answers_with_a_class(rerun.model):
        raise Unsupported(
            f"inputs: the outputs of {type(rerun.model).__name__} are numbers or bits on their own, so no layer says "
            "one class among several."
        )
    call = model_call("inputs", inputs, seen).example(example)
    entered: list[Tensor] = []
    recording = RunRecording()
    last = rerun.layers[-1].module if rerun.layers else None
    if last is None:
        raise Unsupported("layers: this model has no list of layers to look between.")
    first = rerun.layers[0].module
    handle = first.register_forward_pre_hook(_keep_rows(entered), with_kwargs=True)
    try:
        full_output = rerun.run(call, recording, recording.layer)
    finally:
        handle.remove()
    final = list(recording.layers)[-1]
    logits = _logits(full_output)
    if logits.dim() == 3 and recording.layers[final].shape[1] != logits.shape[1]:
        raise Unsupported(
            f"layers: {final} gives rows of {recording.layers[final].shape[1]} positions, and there are answers at "
            f"{logits.shape[1]}: this model runs step by step, so it has no layers above each other to stop between."
        )
    steps = {BEFORE: entered[0]} if entered and entered[0].shape == recording.layers[final].shape else {}
    steps |= {name: rows for name, rows in recording.layers.items() if rows.shape == recording.layers[final].shape}
    if len(steps) < 2:
        raise Unsupported("layers: no two layers of this model give rows of one shape, so none can be left out.")
    names = list(steps)
    copies = torch.cat([steps[name] for name in names])
    try:
        output = rerun.run(call.times(len(names)), at_layers=_replacing(final, copies))
        layer_logits = list(_logits(output))
    except (RuntimeError, ValueError, IndexError):  # a model that cannot take copies
        layer_logits = []
    if len(layer_logits) != len(names):
        layer_logits = [_logits(rerun.run(call, at_layers=_replacing(final, steps[name])))[0] for name in names]
    logits_by_layer = torch.stack([row if row.dim() == 2 else row[None] for row in layer_logits]).float().cpu()
    expected = logits[0] if logits.dim() == 3 else logits
    apart = float((logits_by_layer[-1] - expected.float().cpu()).abs().max())
    if apart > 1e-2 * max(1.0, float(expected.abs().max())):
        raise Unsupported(
            f"layers: replacing the rows after {final} by the same rows changes the output by {apart:.2g}, so the rest "
            "of this model cannot be run on other rows."
        )
    labels = None if tokens is None else [str(token) for token in tokens]
    return LogitLens(names, logits_by_layer, words or str, labels)


def _replacing(layer: str, given: Tensor) -> LayerEdit:
    return lambda name, rows: given if name == layer else rows


def _keep_rows(entered: list[Tensor]) -> Callable[..., None]:
    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows = first_tensor((args, kwargs))
        if rows is not None and not entered:
            entered.append(rows.detach().clone())  # the layer may add to them in place

    return keep


def _logits(output: Any) -> Tensor:
    logits = logits_of(output).detach()
    if logits.dim() not in (2, 3):
        raise BadValue(f"inputs: expected logits (b,classes) or (b,positions,classes), got {described(logits)}.")
    return logits
