"""Hugging Face models: the eager attention that each model family defines, and their FlexAttention.

With `sdpa` they call `scaled_dot_product_attention`, which has its own adapter.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard import scores
from regard.dispatch.attention import Rows
from regard.dispatch.summary import Summary
from regard.interop.huggingface.attention import sink_of
from regard.observation.capture.edits import Edit, edit_mixed, edit_rows
from regard.observation.capture.flex import Flex
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import Proof, proof_of
from regard.observation.capture.reading import GradientInputs, Pairs, Reading, chosen
from regard.observation.capture.storage import Storage, StoredKeys, StoredTensor, StoredValue
from regard.observation.capture.torch_calls import mask_and_bias, rows_seen
from regard.scores import Score
from regard.values.grid import Sizes

CLOSE = 1e-3  # between a row of ours and the model's own, relative to its largest weight: half precision included


class EagerFlex(Flex):
    """FlexAttention through transformers, which applies sinks after the call."""

    def sink(self, event: CallEvent) -> StoredTensor | None:
        sink = sink_of(event.module, {})
        return None if sink is None else event.keep.parameter(sink, "the sinks")


@dataclass
class Eager(Reading):
    """A call of a model family's own eager attention.

    Weights are computed from queries, keys, scale, mask and what else is known of the family. If they do not give the
    output of the call, the family's function is called again for its own weights; if these do not either, they are
    unverified.
    """

    pairs: Pairs
    proof: Proof | None
    evidence: Tensor | None  # (b,h,k): the last row of the returned weights
    dropout: float  # applied to the returned weights
    original: Function
    module: nn.Module
    value: StoredTensor
    kwargs: dict[str, Any]
    sizes: Sizes
    found: Literal["ours", "own", "unverified"] | None = None

    @property
    def device(self) -> torch.device:
        return self.pairs.device

    @property
    def graph(self) -> GradientInputs | None:
        return self.pairs.graph

    def is_doubtful(self) -> bool:
        return self._checked() == "unverified"

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        if self._checked() == "own":
            return chosen(self._own(), rows, heads)
        return self.pairs.weights(rows, heads)

    def columns_of(self, keys: Rows, heads: Rows = None) -> Tensor:
        return super().columns_of(keys, heads) if self._checked() == "own" else self.pairs.columns_of(keys, heads)

    def summary(self, top: int) -> Summary:
        return super().summary(top) if self._checked() == "own" else self.pairs.summary(top)

    def _own(self) -> Tensor:
        """The weights that the family's function returns when it is called again, without dropout."""
        query, key, options = self.pairs._asked()
        mask = options["mask"] if options["mask"] is not None else options["bias"]
        with torch.random.fork_rng():  # a function with dropout of its own must not advance the program's generators
            _, weights = self.original(self.module, query, key, self.value.get(), mask, **self.kwargs)
        returned: Tensor = weights
        return returned

    @torch.no_grad()
    def _checked(self) -> str:
        if self.found is None:
            self.found = self._compared() if all(self.sizes) else "ours"
        return self.found

    def _compared(self) -> Literal["ours", "own", "unverified"]:
        ours = self.pairs.last_row()
        mixes = self.proof is not None and self.proof.holds(ours[0])
        if (mixes or self.proof is None) and self._is_returned(ours):
            return "ours"
        # In half precision the family's weights are rounded like those it mixed with. But the returned weights may not
        # be the ones it mixed with: GraniteSWA returns them without the sink.
        if self.proof is not None or self.evidence is not None:
            try:
                recomputed = self._own()[:, :, -1]
                if self.proof.holds(recomputed[0]) if self.proof is not None else self._is_returned(recomputed):
                    return "own"
            except Exception:  # the function cannot be called again, or returns no weights
                pass
        return "ours" if mixes else "unverified"

    def _is_returned(self, row: Tensor) -> bool:
        """Whether a last row (b,h,k) equals the returned one before dropout."""
        if self.evidence is None:
            return self.proof is not None
        row, kept = row.to(self.evidence), torch.ones_like(self.evidence, dtype=torch.bool)
        if self.dropout:
            row, kept = row / (1 - self.dropout), self.evidence != 0
        apart = (row - self.evidence).masked_fill(~kept, 0).abs().amax()
        return bool(kept.any()) and bool(apart <= CLOSE * self.evidence.abs().amax())


class EagerForward(Adapter):
    """`eager_attention_forward(module, query, key, value, attention_mask, …)` of a family of models."""

    kind = "eager"

    def reading(self, event: CallEvent) -> Reading:
        """Queries, keys, mask, scale and the other arguments of the call."""
        bound = inspect.signature(event.original).bind(*event.args, **event.kwargs)
        arguments = dict(bound.arguments)
        arguments |= arguments.pop("kwargs", {})
        module, query, key, value = arguments["module"], arguments["query"], arguments["key"], arguments["value"]
        mask, bias = self._hiding(event.keep, arguments, key.shape[2])
        scale, cap = arguments.get("scaling"), arguments.get("softcap")
        score: StoredValue[Score] | str = "scaled-dot"
        if cap is not None:
            score = event.keep.value(scores.softcap(cap), "the score")
        sink = sink_of(module, arguments)
        output, weights = event.result
        dropout = float(arguments.get("dropout") or 0.0) if module.training else 0.0
        evidence = None
        if isinstance(weights, Tensor) and weights.shape == (*query.shape[:3], key.shape[2]):
            evidence = weights.detach()[:, :, -1].clone()
        rows = rows_seen(arguments.get("attention_mask"), key.shape[2])
        proof = self._proof(event.keep, value, output, (*query.shape[:3], key.shape[2]), dropout, evidence, rows)
        graph = None
        if event.gradients and output.requires_grad:
            graph = GradientInputs(value.detach(), output, heads_at=2)
        pairs = Pairs(
            event.keep.activation(query, "the query"),
            StoredKeys(event.keep.activation(key, "the key"), rows),
            (*query.shape[:3], key.shape[2]),
            mask,
            bias,
            score,
            "softmax",
            scale,
            None if sink is None else event.keep.parameter(sink, "the sinks"),
            graph=graph,
        )
        options = {
            name: content
            for name, content in arguments.items()
            if name not in ("module", "query", "key", "value", "attention_mask")
        } | {"dropout": 0.0}
        if arguments.get("position_bias") is not None:
            options["position_bias"] = None  # already part of the bias
        return Eager(
            pairs,
            proof,
            evidence,
            dropout,
            event.original,
            module,
            event.keep.activation(value, "the value"),
            options,
            pairs.sizes,
        )

    @staticmethod
    def _proof(
        keep: Storage,
        value: Tensor,
        output: Any,
        sizes: Sizes,
        dropout: float,
        evidence: Tensor | None,
        seen: Tensor | None,
    ) -> Proof | None:
        """From the output (b,q,h,v) or (b,q,h·v); the returned weights show what dropout kept."""
        batch, heads, queries, _ = sizes
        if (dropout and evidence is None) or not isinstance(output, Tensor):
            return None
        if output.shape != (batch, queries, heads, value.shape[-1]):
            if output.shape != (batch, queries, heads * value.shape[-1]):
                return None
            output = output.unflatten(-1, (heads, -1))
        kept = None
        if dropout and evidence is not None and batch:
            kept = (evidence[0] != 0) / (1 - dropout)
        return proof_of(keep, value, output.transpose(1, 2), seen, kept, columns=8)

    @staticmethod
    def _hiding(keep: Storage, given: dict[str, Any], keys: int) -> tuple[StoredTensor | None, StoredTensor | None]:
        """Mask and bias; a position bias and a float mask are added. Both may be longer than the keys."""
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

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        args, kwargs = edit_rows(edit, args, kwargs, first=1)
        output, weights = original(*args, **kwargs)
        query = args[1] if len(args) > 1 else kwargs["query"]
        return edit_mixed(edit, output, 2, query.shape[1]), weights
