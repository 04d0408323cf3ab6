"""Changing an attention call while a model runs: its queries, keys and values, or the values that it mixed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

_ROWS = (("query", "key", "value"), ("q", "k", "v"))


class Edit:
    """A change of one call. The base class changes nothing."""

    def rows(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The queries, keys and values to attend with, in the layout of the function that is called."""
        return query, key, value

    def mixed(self, values: Tensor) -> Tensor:
        """What to return in the place of the mixed values (b,h,q,v), which the output projection reads next."""
        return values


class Silence(Edit):
    """Set the output of some heads to zero."""

    def __init__(self, heads: Sequence[int]) -> None:
        self.heads = list(heads)

    def mixed(self, values: Tensor) -> Tensor:
        keep = torch.ones(values.shape[1], dtype=values.dtype, device=values.device)
        keep[self.heads if values.shape[1] > 1 else slice(None)] = 0
        return values * keep.view(-1, 1, 1)


def edit_mixed(edit: Edit, result: Tensor, heads_at: int, count: int | None = None) -> Tensor:
    """A result with its mixed values edited.

    Args:
        edit: the change.
        result: at least four axes, with rows and channels as the last two once `heads_at` is taken out; fewer axes mean
            one head, or `count` heads that share the last axis.
        heads_at: the axis of the heads.
        count: the number of heads, where the result may hold them in its last axis.
    """
    if result.dim() == 3 and count is not None and count > 1:
        split = result.unflatten(-1, (count, -1)).transpose(1, 2)
        return edit.mixed(split).transpose(1, 2).reshape(result.shape)
    if result.dim() < 4:
        single = result.reshape((1,) * (3 - result.dim()) + result.shape).unsqueeze(1)
        return edit.mixed(single).reshape(result.shape)
    moved = result.movedim(heads_at, -3)
    values = moved if moved.dim() == 4 else moved.flatten(0, -4)
    return edit.mixed(values).reshape(moved.shape).movedim(-3, heads_at)


def edit_rows(
    edit: Edit, args: tuple[Any, ...], kwargs: dict[str, Any], first: int = 0
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with its queries, keys and values edited; `first`: where the query is passed."""
    if type(edit).rows is Edit.rows:
        return args, kwargs
    names = next((some for some in _ROWS if any(name in kwargs for name in some)), _ROWS[0])
    rows_in = [args[first + at] if len(args) > first + at else kwargs[name] for at, name in enumerate(names)]
    changed_args, changed_kwargs = list(args), dict(kwargs)
    for at, (name, rows) in enumerate(zip(names, edit.rows(*rows_in), strict=True)):
        if len(args) > first + at:
            changed_args[first + at] = rows
        else:
            changed_kwargs[name] = rows
    return tuple(changed_args), changed_kwargs


def edit_call(edit: Edit, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call attention over (b,h,q,·) rows with them edited, and edit what it mixed; of several results, the first."""
    args, kwargs = edit_rows(edit, args, kwargs)
    result = original(*args, **kwargs)
    if isinstance(result, tuple):
        return (edit_mixed(edit, result[0], 1), *result[1:])
    return edit_mixed(edit, result, 1)


@contextlib.contextmanager
def fused_function(function: Any) -> Iterator[None]:
    """Let `torch.nn.functional.scaled_dot_product_attention` be another function."""
    original = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = function
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original


@contextlib.contextmanager
def edited_fused_calls(edit: Edit) -> Iterator[None]:
    """Edit the calls of `scaled_dot_product_attention` inside a function that projects its output itself."""
    original = torch.nn.functional.scaled_dot_product_attention

    def call(*args: Any, **kwargs: Any) -> Tensor:
        args, kwargs = edit_rows(edit, args, kwargs)
        return edit_mixed(edit, original(*args, **kwargs), -3)

    with fused_function(call):
        yield
