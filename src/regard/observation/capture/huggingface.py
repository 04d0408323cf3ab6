"""Hugging Face models: eager attention, which every family of models writes for itself, and their FlexAttention.

On `sdpa` they call `scaled_dot_product_attention`, which is noted like anybody's.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard import scores
from regard.core import Rows
from regard.grid import Sizes
from regard.observation.capture.flex import Flex
from regard.observation.capture.interception import Adapter, Function, Scene
from regard.observation.capture.keeping import Keeper, Kept, KeptValue, Keys
from regard.observation.capture.reading import Graph, Pairs, Reading, chosen
from regard.observation.capture.torch_calls import mask_and_bias, rows_seen, silenced
from regard.scores import Score
from regard.summary import Summary

CLOSE = (
    1e-3  # between a row of ours and the model's own, relative to its largest weight: half precision included
)


def sink_of(module: nn.Module | None, kwargs: dict[str, Any]) -> Tensor | None:
    """The logits of attention sinks, one for each head (GPT-OSS and relatives)."""
    sink = kwargs.get("s_aux")
    sink = getattr(module, "sinks", None) if sink is None else sink
    return sink if isinstance(sink, Tensor) else None


class EagerFlex(Flex):
    """FlexAttention through transformers, which applies sinks after the call."""

    def sink(self, scene: Scene) -> Kept | None:
        sink = sink_of(scene.module, {})
        return None if sink is None else scene.keep.parameter(sink, "the sinks")


@dataclass
class Eager(Reading):
    """A call of a family's own eager attention.

    Weights come from queries, keys, scale, mask and what else is known of the family. A row of the weights that the
    model itself made is kept as evidence: if ours were different, the model's own function is asked again instead.
    """

    pairs: Pairs
    evidence: Tensor | None  # (b,h,k): the last row; None where dropout has spoilt it
    original: Function
    module: nn.Module
    value: Kept
    kwargs: dict[str, Any]
    sizes: Sizes
    agrees: bool | None = None

    @property
    def device(self) -> torch.device:
        return self.pairs.device

    @property
    def graph(self) -> Graph | None:
        return self.pairs.graph

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        if self._checked():
            return self.pairs.weights(rows, heads)
        query, key, options = self.pairs._asked()
        mask = options["mask"] if options["mask"] is not None else options["bias"]
        _, found = self.original(self.module, query, key, self.value.get(), mask, **self.kwargs)
        return chosen(found, rows, heads)

    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        return self.pairs.columns_of(keys, heads) if self._checked() else super().columns_of(keys, heads)

    def summary(self, top: int) -> Summary:
        return self.pairs.summary(top) if self._checked() else super().summary(top)

    def _checked(self) -> bool:
        if self.agrees is None:
            self.agrees = True
            if self.evidence is not None and self.evidence.numel():
                ours = self.pairs.weights(rows=[-1])[:, :, 0].to(self.evidence)
                apart = (ours - self.evidence).abs().amax()
                self.agrees = bool(apart <= CLOSE * self.evidence.abs().amax())
        return self.agrees


class EagerForward(Adapter):
    """`eager_attention_forward(module, query, key, value, attention_mask, …)` of a family of models."""

    kind = "eager"

    def reading(self, scene: Scene) -> Reading:
        """What is known of the call."""
        bound = inspect.signature(scene.original).bind(*scene.args, **scene.kwargs)
        given = dict(bound.arguments)
        given |= given.pop("kwargs", {})
        module, query, key, value = given["module"], given["query"], given["key"], given["value"]
        mask, bias = self._hiding(scene.keep, given, key.shape[2])
        scale, cap = given.get("scaling"), given.get("softcap")
        score: KeptValue[Score] | str = "scaled-dot"
        if cap is not None:
            score = scene.keep.value(scores.softcap(cap), "the score")
        sink = sink_of(module, given)
        output, weights = scene.result
        dropped = module.training and given.get("dropout", 0.0) > 0
        evidence = None
        if weights is not None and not dropped:
            evidence = weights.detach()[:, :, -1].clone()
        graph = None
        if scene.gradients and output.requires_grad:
            graph = Graph(value.detach(), output, heads_at=2)
        pairs = Pairs(
            scene.keep.activation(query, "the query"),
            Keys(scene.keep.activation(key, "the key"), rows_seen(given.get("attention_mask"), key.shape[2])),
            (*query.shape[:3], key.shape[2]),
            mask, bias, score, "softmax", scale,
            None if sink is None else scene.keep.parameter(sink, "the sinks"),
            graph=graph,
        )  # fmt: skip
        rest = {
            name: content for name, content in given.items()
            if name not in ("module", "query", "key", "value", "attention_mask")
        } | {"dropout": 0.0}  # fmt: skip
        if given.get("position_bias") is not None:
            rest["position_bias"] = None  # it is a part of the bias
        return Eager(
            pairs,
            evidence,
            scene.original,
            module,
            scene.keep.activation(value, "the value"),
            rest,
            pairs.sizes,
        )

    @staticmethod
    def _hiding(keep: Keeper, given: dict[str, Any], keys: int) -> tuple[Kept | None, Kept | None]:
        """Mask and bias; a position bias and a float mask are added up. Both may be longer than the keys."""
        mask, position = given.get("attention_mask"), given.get("position_bias")
        if mask is not None:
            mask = mask[..., :keys]
        if position is None:
            return mask_and_bias(mask, given["query"].shape[:-2], keep)
        position = position.detach()[..., :keys]
        if mask is None or mask.dtype == torch.bool:
            visible, _ = mask_and_bias(mask, given["query"].shape[:-2], keep)
            return visible, keep.pairwise(position, "the position bias")
        return None, keep.pairwise(position + mask.detach(), "the bias")

    def silent(
        self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], heads: Sequence[int]
    ) -> Any:
        output, weights = original(*args, **kwargs)
        return silenced(output, heads, 2), weights
