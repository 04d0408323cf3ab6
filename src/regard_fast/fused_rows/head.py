"""Logits that are not computed: their cross-entropy is, in one kernel with the last normalisation and its gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.formula.dropout import draw_seed
from regard.nn.fast_path import Loss
from regard_fast import fused_rows
from regard_fast.fused_rows import layers

if TYPE_CHECKING:
    from regard_fast.fused_rows.tokens import EmbeddedTokens

MOST_OUTPUTS = 512  # logits of a row, and tokens whose rows are made here; more are worth a product of their own


class DeferredLogits:
    """What a model says in training where only the loss of its logits is needed.

    `rows` are those before the last normalisation; with one target for each example, their mean after it is what the
    logits are made from. `stack`: they are not computed either, but are the result of one operator for all layers, with
    these arguments; `tokens`: nor are those before the layers.
    """

    def __init__(
        self,
        rows: Tensor,
        norm: nn.LayerNorm,
        linear: nn.Linear,
        stack: tuple[Any, ...] | None = None,
        tokens: EmbeddedTokens | None = None,
    ) -> None:
        self.rows, self.norm, self.linear, self.stack, self.tokens = rows, norm, linear, stack, tokens
        self.products = layers._dtype(rows)

    def loss(self, targets: Tensor, keep: Tensor | None, smoothing: float, seed: Tensor | None) -> Loss:
        """The cross-entropies where they count, and how many do. `seed`: of dropout; None: one is drawn if needed."""
        from regard_fast.fused_rows import head_op, stack_loss_op

        options = head_op.HeadOptions(self.norm.eps, smoothing, self.products)
        weights = head_weights(self.norm, self.linear)
        if self.stack is None:
            return Loss(*head_op.run(self.rows, targets, keep, weights, options))
        rows, drops, stack_weights, layered = self.stack
        if self.tokens is not None:
            rows, drops = self.tokens, drops or self.tokens.rate > 0
        if not drops:
            seed = None
        elif seed is None:
            seed = draw_seed(self.rows.device)
        return Loss(*stack_loss_op.run(rows, seed, targets, keep, stack_weights, weights, layered, options))


def refusal(
    rows: Tensor, norm: Any, linear: Any, modules: list[nn.Module], targets: Tensor | None, keep: Tensor | None,
    pooled: bool = False,
) -> str:
    """Why the logits of these rows must be computed; empty if the kernel can. `modules`: others that are not called.

    `pooled`: the logits are those of the means of all rows of an example.
    """
    if why := layers.circumstances(rows):
        return why
    if not torch.is_grad_enabled():
        return "no gradients are wanted"
    shape = rows.shape[:1] if pooled else rows.shape[:2]
    if targets is None or targets.shape != shape or targets.dtype != torch.int64:
        return f"there is not one class to predict for each {'example' if pooled else 'row'}"
    if keep is not None and (keep.shape != targets.shape or keep.dtype != torch.bool):
        return "what counts is not said by one truth value for each target"
    if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None:
        return "only a LayerNorm with gain and shift is known"
    if type(linear) is not nn.Linear:
        return "the map to logits is not a plain nn.Linear"
    if linear.out_features > MOST_OUTPUTS:
        return f"there are more than {MOST_OUTPUTS} logits"
    if any(layers.hooked(module) for module in (norm, linear, *modules)):
        return "a module has hooks"
    if any(weight.dtype != torch.float32 and not fused_rows.on_cpu for weight in head_weights(norm, linear)):
        return "weights are not float32"
    return ""


def head_weights(norm: nn.LayerNorm, linear: nn.Linear) -> list[Tensor]:
    """Gain, shift, weight and maybe bias."""
    weights = [norm.weight, norm.bias, linear.weight]
    return weights if linear.bias is None else [*weights, linear.bias]
