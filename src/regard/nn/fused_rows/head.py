"""Logits that are not computed: their cross-entropy is, in one kernel with the last normalisation and its gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn import fused_rows
from regard.nn.fused_rows import layers

MOST_OUTPUTS = 512  # logits of a row; more are worth a product of their own


class DeferredLogits:
    """What a model answers in training where only the loss of its logits is needed.

    `rows` are those before the last normalisation. `stack`: they are not computed either, but are the result of one
    operator for all layers, with these arguments.
    """

    def __init__(
        self, rows: Tensor, norm: nn.LayerNorm, linear: nn.Linear, stack: tuple[Any, ...] | None = None
    ) -> None:
        self.rows, self.norm, self.linear, self.stack = rows, norm, linear, stack
        self.products = layers._dtype(rows)  # not "dtype": Accelerate would take this for a tensor

    def loss(self, targets: Tensor, keep: Tensor | None, smoothing: float) -> tuple[Tensor, Tensor]:
        """The sum of the cross-entropies where they count, and how many do."""
        from regard.nn.fused_rows import head_op, stack_loss_op

        options = head_op.HeadOptions(self.norm.eps, smoothing, self.products)
        weights = head_weights(self.norm, self.linear)
        if self.stack is None:
            return head_op.run(self.rows, targets, keep, weights, options)
        rows, seed, own, layered = self.stack
        return stack_loss_op.run(rows, seed, targets, keep, own, weights, layered, options)


def refusal(
    rows: Tensor, norm: Any, linear: Any, modules: list[nn.Module], targets: Tensor | None, keep: Tensor | None
) -> str:  # fmt: skip
    """Why the logits of these rows must be computed; empty if the kernel can. `modules`: others that are not called."""
    if why := layers.circumstances(rows):
        return why
    if not torch.is_grad_enabled():
        return "no gradients are wanted"
    if targets is None or targets.shape != rows.shape[:2] or targets.dtype != torch.int64:
        return "there is not one class to predict for each row"
    if keep is not None and (keep.shape != targets.shape or keep.dtype != torch.bool):
        return "what counts is not said by one truth value for each target"
    if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None:
        return "only a LayerNorm with gain and shift is known"
    if type(linear) is not nn.Linear:
        return "the map to logits is not a plain nn.Linear"
    if linear.out_features > MOST_OUTPUTS:
        return f"there are more than {MOST_OUTPUTS} logits"
    if any(layers._hooked(one) for one in (norm, linear, *modules)):
        return "a module has hooks"
    if any(one.dtype != torch.float32 and not fused_rows.on_cpu for one in head_weights(norm, linear)):
        return "weights are not float32"
    return ""


def head_weights(norm: nn.LayerNorm, linear: nn.Linear) -> list[Tensor]:
    """Gain, shift, weight and maybe bias."""
    found = [norm.weight, norm.bias, linear.weight]
    return found if linear.bias is None else [*found, linear.bias]
