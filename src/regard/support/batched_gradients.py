"""Backward passes for several gradients at once: `is_grads_batched`, `jacobian(vectorize=True)`, `gradcheck`.

torch runs such a pass once, on tensors that stand for many, which no kernel of ours takes. So an operator, or the
backward pass of a function, is called for each of them in turn. (These tensors are not those of `torch.func`: torch
made them for this alone, and gives them rules by the dispatch key `Batched` only.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

_BATCHED = torch._C._dispatch_key_parse("Batched")


def take_one_by_one(operator: str, library: torch.library.Library) -> None:
    """Let an operator that computes gradients be called for several of them."""
    call = getattr(torch.ops.regard, operator).default
    library.impl(operator, partial(_one_by_one, call), "Batched")


def for_one_gradient(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the backward pass of a function, which may then be called for several gradients."""

    @wraps(backward)
    def run(ctx: Any, *grads: Tensor | None) -> Any:
        # A recorded pass consists of torch's own operations.
        if torch.compiler.is_compiling() or torch.is_grad_enabled() or not any(map(_stands_for_many, grads)):
            return backward(ctx, *grads)
        return _one_by_one(partial(backward, ctx), *grads)

    return run


def _stands_for_many(argument: Any) -> bool:
    return isinstance(argument, Tensor) and torch._C._dispatch_keys(argument).has(_BATCHED)


def _one_by_one(call: Callable[..., Any], *arguments: Any) -> Any:
    """The results of a call for each gradient, as tensors that stand for all of them."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    mapped: list[Tensor] = []

    def unwrapped(argument: Any) -> Any:
        if not _stands_for_many(argument):
            return argument
        mapped.append(torch._remove_batch_dim(argument, level, 0, 0))
        return mapped[-1].unbind()

    def chosen(argument: Any, number: int) -> Any:
        if isinstance(argument, list):
            return [chosen(element, number) for element in argument]
        return argument[number] if isinstance(argument, tuple) else argument

    def joined(*parts: Any) -> Any:
        if not isinstance(parts[0], Tensor):
            return parts[0]
        return torch._add_batch_dim(torch.stack(parts), 0, level)

    entries = [
        [unwrapped(element) for element in argument] if isinstance(argument, list) else unwrapped(argument)
        for argument in arguments
    ]
    calls = [call(*chosen(entries, number)) for number in range(len(mapped[0]))]
    return tree_map(joined, *calls)
