"""Derivatives of one small piece of a computation, also from inside a custom operator.

The kernel of a `torch.library` operator runs below autograd: nothing it does is recorded. A strip of `tiled` that
wants the derivative of one piece (a user's own normaliser, a positional score) lifts that ban for the piece alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import Unsupported

Function = TypeVar("Function", bound=Callable[..., Any])
_AUTOGRAD_KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")


def summation(like: Tensor) -> torch.dtype:
    """The dtype to add up in what every pair of a request contributes to: a weight's gradient, a table's.

    float64 costs nothing for so few numbers, and the order of the strips no longer shows. (Apple's GPUs have none.)
    """
    return torch.float64 if like.device.type != "mps" else torch.float32


def constant_when_traced(function: Function) -> Function:
    """Let `torch.compile` call `function` while it traces and take the result as a constant.

    This is torch.compiler.assume_constant_result, which imports the whole compiler only to set the mark.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_traced
def transforming() -> bool:
    """Whether a transform of `torch.func` (grad, vjp, jacrev, vmap, jvp …) is under way."""
    return torch._C._functorch.maybe_current_level() is not None


def needs_plain_torch() -> bool:
    """Whether derivatives are being taken in a way that a custom operator has no rule for: a transform, or forwards."""
    return transforming() or forward_ad._current_level >= 0


@contextmanager
def recording() -> Iterator[None]:
    """Record operations for autograd, even inside an operator's kernel."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD_KEYS:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def vjp(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The gradient of `function(*inputs)` in the direction `grad`, for each input."""
    with recording():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        output = function(*leaves)
        found = torch.autograd.grad(output, leaves, grad.expand_as(output), allow_unused=True)
    return [
        torch.zeros_like(leaf) if part is None else part.detach()
        for leaf, part in zip(inputs, found, strict=True)
    ]


def apart(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A view of each input of an operator whose backward pass is itself recorded.

    Where one input was made from another, a gradient taken for the inputs themselves would also go the way from one to
    the other, which is not the operator's to go.
    """
    return [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]


def gradients(
    pairs: Iterable[tuple[Tensor, Tensor | None]], targets: Sequence[Tensor | None], again: bool = False
) -> list[Tensor | None]:
    """The gradient for each target of results paired with what came from above; None where there is none.

    `again`: the gradients have a graph of their own.
    """
    live = [(result, grad) for result, grad in pairs if grad is not None and result.requires_grad]
    wanted = [target for target in targets if target is not None and target.requires_grad]
    if not live or not wanted:
        return [None] * len(targets)
    results, grads = zip(*live, strict=True)
    found = iter(torch.autograd.grad(results, wanted, grads, allow_unused=True, create_graph=again))
    return [next(found) if target is not None and target.requires_grad else None for target in targets]


def forbid_second_derivative(output: Tensor, kernel: str) -> None:
    """Make a recorded backward pass through `output` fail at once and with advice."""
    if not output.requires_grad or torch.compiler.is_compiling():
        return

    def refuse(grad: Tensor) -> None:
        if torch.is_grad_enabled():
            raise Unsupported(
                f"attend: this backward pass is itself being recorded (create_graph=True), and {kernel} has no second "
                f'derivative. Pass impl="reference" (exact) or impl="tiled" to attend.'
            )

    output.register_hook(refuse)
