"""Regard's attention of transformers with a change: counted, wrong on purpose, or with the slips of eager attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import regard.dispatch.attention as dispatch
from regard.interop.huggingface import attention
from regard.interop.huggingface.attention import attention_function

MISTAKE = 1.1  # a factor of the scale


@contextlib.contextmanager
def _replaced(attend: Callable[..., Any]) -> Iterator[None]:
    before, dispatch.attend = dispatch.attend, attend  # type: ignore[misc]
    try:
        yield
    finally:
        dispatch.attend = before  # type: ignore[misc]


@contextlib.contextmanager
def counted_calls() -> Iterator[list[int]]:
    """A list that gets one entry for each call of `attend`."""
    calls: list[int] = []
    attend = dispatch.attend

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return attend(*args, **options)

    with _replaced(counted):
        yield calls


@contextlib.contextmanager
def replaced_output(change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Attention whose output is changed: zeros show how much a model depends on it, noise how stable it is."""
    attend = dispatch.attend
    with _replaced(lambda *args, **options: change(attend(*args, **options))):
        yield


@contextlib.contextmanager
def wrong_scale() -> Iterator[None]:
    """Attention whose scores have a wrong scale."""
    attend = dispatch.attend

    def changed(query: Tensor, *args: Any, **options: Any) -> Any:
        scale = options.get("scale")
        right = query.shape[-1] ** -0.5 if scale is None else scale
        return attend(query, *args, **{**options, "scale": MISTAKE * right})

    with _replaced(changed):
        yield


@contextlib.contextmanager
def without_choices() -> Iterator[list[int]]:
    """Attention that sees the keys that an indexer left out; a list that gets one entry for each such call."""
    choices: list[int] = []
    chosen_keys = attention.chosen_keys

    def overlooked(*args: Any) -> None:
        if chosen_keys(*args) is not None:
            choices.append(1)

    attention.chosen_keys = overlooked  # type: ignore[assignment]
    try:
        yield choices
    finally:
        attention.chosen_keys = chosen_keys


@contextlib.contextmanager
def empty_rows_of_eager() -> Iterator[None]:
    """Attention that returns what eager attention does for a query that sees no key."""
    attend = dispatch.attend

    def uniform(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        output = attend(query, key, value, **options)
        return uniform_where_nothing_is_seen(output, query, key, value, options)

    with _replaced(uniform):
        yield


@contextlib.contextmanager
def called_with(change: Callable[[Any, Tensor], tuple[Any, dict[str, Any]]]) -> Iterator[None]:
    """Layers that call regard with another mask, and with further options, as `change(mask, query)` says."""
    from transformers import AttentionInterface

    attend = attention_function()

    def changed(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, *rest: Any, **more: Any) -> Any:
        mask, options = change(mask, query)
        return attend(module, query, key, value, mask, *rest, **more | options)

    AttentionInterface.register("regard", changed)
    try:
        yield
    finally:
        AttentionInterface.register("regard", attend)


def uniform_where_nothing_is_seen(
    output: Tensor, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
) -> Tensor:
    """The output with eager attention's rows for queries that see no key: the mean of all values, also hidden ones."""
    mask = options.get("mask")
    if mask is None:
        return output
    if not isinstance(mask, Tensor):
        mask = mask.dense(query.shape[2], key.shape[2], query.shape[0], query.shape[1], device=query.device)
    mean = value.mean(2, keepdim=True).repeat_interleave(query.shape[1] // value.shape[1], 1)
    return torch.where(mask.any(-1, keepdim=True), output, mean)
