"""Derivatives of one small part of a computation, also inside a custom operator.

The kernel of a `torch.library` operator runs below autograd: nothing it does is recorded. Where a strip of `tiled`
needs the derivative of one part (a user's normaliser, a positional score), recording is switched on for that part only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import Unsupported
from regard.support.tracing import constant_when_traced, only_standard_operators

_AUTOGRAD_KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView")


def summation_dtype(like: Tensor) -> torch.dtype:
    """The dtype in which to sum a gradient to which every pair of a request contributes (of a weight, of a table).

    float64 is cheap for so few numbers and makes the result independent of the order of strips. MPS has no float64.
    """
    return torch.float64 if like.device.type != "mps" else torch.float32


@constant_when_traced
def transforming() -> bool:
    """Whether a transform of `torch.func` (grad, vjp, jacrev, vmap, jvp …) is active."""
    return torch._C._functorch.maybe_current_level() is not None


def needs_plain_torch() -> bool:
    """Whether no custom operator may be used: inside transforms and forward-mode differentiation, for which they have
    no rule, and while a model is exported to other programs, which do not know them."""
    return transforming() or forward_ad._current_level >= 0 or only_standard_operators()


@contextmanager
def record_for_autograd() -> Iterator[None]:
    """Record operations for autograd, even inside an operator's kernel."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOGRAD_KEYS:
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    included = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


def vjp(function: Callable[..., Tensor], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """The gradient of `function(*inputs)` in the direction `grad`, for each input."""
    with record_for_autograd():
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        output = function(*leaves)
        input_gradients = torch.autograd.grad(output, leaves, grad.expand_as(output), allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient.detach()
        for leaf, gradient in zip(inputs, input_gradients, strict=True)
    ]


def fresh_views(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """A view of each input of an operator whose backward pass is itself recorded.

    Where one input was computed from another, differentiating with respect to the inputs themselves would also follow
    that path, which lies outside of the operator.
    """
    return [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]


def gradients(
    pairs: Iterable[tuple[Tensor, Tensor | None]], targets: Sequence[Tensor | None], again: bool = False
) -> list[Tensor | None]:
    """The gradient of each target, given (result, upstream gradient) pairs; None where there is none.

    `again`: build a graph for the gradients, so that they can be differentiated again.
    """
    live = [(result, grad) for result, grad in pairs if grad is not None and result.requires_grad]
    wanted = [target for target in targets if target is not None and target.requires_grad]
    if not live or not wanted:
        return [None] * len(targets)
    results, grads = zip(*live, strict=True)
    gradients_in_order = iter(torch.autograd.grad(results, wanted, grads, allow_unused=True, create_graph=again))
    return [next(gradients_in_order) if target is not None and target.requires_grad else None for target in targets]


def recorded() -> bool:
    """Whether operations may be differentiated, now or later: with gradients on, in forward mode, in a transform."""
    return torch.is_grad_enabled() or transforming() or forward_ad._current_level >= 0


def forbid_second_derivative(output: Tensor, kernel: str) -> None:
    """Make a recorded backward pass through `output` raise, naming an implementation that supports it."""
    if not output.requires_grad or torch.compiler.is_compiling():
        return

    def refuse(grad: Tensor) -> None:
        if torch.is_grad_enabled():
            raise Unsupported(
                f"attend: this backward pass is itself being recorded (create_graph=True), and {kernel} has no second "
                f'derivative. Pass impl="reference" (exact) or impl="tiled" to attend.'
            )

    output.register_hook(refuse)
