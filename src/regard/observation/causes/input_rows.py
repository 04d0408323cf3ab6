"""The rows through which an input enters a model: embedded tokens, vectors or pixels, and runs on other rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import BadValue, Unsupported, unknown_name
from regard.observation.causes.copies import ModelCall, first_tensor, mapped, tensors_in
from regard.observation.observer import parts_of
from regard.support.arguments import described

NAMED = ("input_ids", "pixel_values", "input_values", "input_features", "inputs_embeds")  # by Hugging Face
BASELINES = ("zero", "mean")


class InputRows:
    """Where one example enters a model.

    Integer inputs enter at the module that embeds them, in its first call with these ids; other inputs are the rows
    themselves.
    """

    def __init__(self, model: nn.Module, call: ModelCall) -> None:
        self.model, self.call = model, call
        self.given = _entering(call)
        self.module: nn.Module | None = None  # that embeds
        self.number = 0  # of its calls before the one with these ids
        self.rows = self.given
        if not self.given.is_floating_point():
            self._find()
        self.rows = self.rows.detach()

    @property
    def positions(self) -> int:
        """The number of positions, or of pixels."""
        return self.flat(self.rows).shape[1]

    @property
    def picture(self) -> tuple[int, int] | None:
        """Height and width, where the rows are pixels (b,c,h,w)."""
        return (self.rows.shape[2], self.rows.shape[3]) if self.rows.dim() == 4 else None

    def flat(self, rows: Tensor) -> Tensor:
        """Rows as (b,positions,channels): pixels line by line."""
        return rows.flatten(2).transpose(1, 2) if rows.dim() == 4 else rows.unsqueeze(-1) if rows.dim() == 2 else rows

    def unflat(self, rows: Tensor) -> Tensor:
        """The inverse of `flat`."""
        if self.rows.dim() == 4:
            return rows.transpose(1, 2).reshape(len(rows), *self.rows.shape[1:])
        return rows.squeeze(-1) if self.rows.dim() == 2 else rows

    def baseline(self, kind: str | int | Tensor) -> Tensor:
        """Rows without information: zeros, the mean row, the row of a token, or rows that are given."""
        if isinstance(kind, Tensor):
            return kind.to(self.rows).expand_as(self.rows)
        if isinstance(kind, int) and not isinstance(kind, bool):
            table = getattr(self.module, "weight", None)
            if not isinstance(table, Tensor) or not 0 <= kind < len(table):
                raise BadValue(f"baseline: expected a token of the model's embedding, got {kind}.")
            return table[kind].detach().expand_as(self.rows)
        if kind not in BASELINES:
            raise unknown_name("baseline", kind, BASELINES)
        if kind == "zero":
            return torch.zeros_like(self.rows)
        return self.unflat(self.flat(self.rows).mean(1, keepdim=True).expand_as(self.flat(self.rows)))

    def run(self, rows: Tensor, run: Callable[[ModelCall], Any] | None = None) -> Any:
        """The model's output with other rows, as many copies of the example as there are rows."""
        copies = len(rows)
        call = self.call.times(copies)
        with self._entered(rows):
            if self.module is None:
                left = [rows]
                target = _entering(call)
                args, kwargs = mapped(
                    (call.args, call.kwargs), lambda tensor: left.pop() if left and tensor is target else tensor
                )
                call = ModelCall(args, kwargs)
            return self.model(*call.args, **call.kwargs) if run is None else run(call)

    @contextlib.contextmanager
    def _entered(self, rows: Tensor) -> Iterator[None]:
        if self.module is None:
            yield
            return
        with replaced_output(self.module, rows, self.number):
            yield

    def _find(self) -> None:
        """The module that turns the ids into rows: an embedding if there is one, else the innermost that does."""
        calls: dict[nn.Module, int] = {}
        candidates: list[tuple[bool, nn.Module, int, Tensor]] = []

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            ids, rows = first_tensor((args, kwargs)), first_tensor(output)
            number = calls[module] = calls.get(module, -1) + 1
            if ids is None or rows is None or ids.shape != self.given.shape or ids.is_floating_point():
                return
            if rows.is_floating_point() and rows.shape[:2] == ids.shape[:2] and torch.equal(ids, self.given):
                candidates.append((isinstance(module, nn.Embedding), module, number, rows))

        handles = [
            submodule.register_forward_hook(hook, with_kwargs=True)
            for submodule in parts_of(self.model)
            if submodule is not self.model
        ]
        try:
            with torch.no_grad():
                self.model(*self.call.args, **self.call.kwargs)
        finally:
            for handle in handles:
                handle.remove()
        if not candidates:
            raise Unsupported(
                f"inputs: no module of this model embeds its ids {tuple(self.given.shape)}, so there are no rows "
                "through which gradients could be followed."
            )
        _, self.module, self.number, self.rows = next(
            (candidate for candidate in candidates if candidate[0]), candidates[0]
        )


@contextlib.contextmanager
def replaced_output(module: nn.Module, rows: Tensor, number: int = 0) -> Iterator[None]:
    """Let one call of a module return other rows."""
    calls = -1

    def hook(module: nn.Module, args: Any, output: Any) -> Tensor | None:
        nonlocal calls
        calls += 1
        return rows if calls == number else None

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _entering(call: ModelCall) -> Tensor:
    """The tensor that a model reads: by its name, else the first."""
    named = next((call.kwargs[name] for name in NAMED if isinstance(call.kwargs.get(name), Tensor)), None)
    entering = named if named is not None else next(tensors_in((call.args, call.kwargs)))
    if entering.dim() < 2:
        raise BadValue(f"inputs: expected a batch of tokens, vectors or pixels, got {described(entering)}.")
    return entering
