"""`regard.attend`: every mask, score, bias and normaliser is stored as the value it is."""

from __future__ import annotations

import inspect
from typing import Any

import regard.dispatch.attention as dispatch
from regard.biases import Bias
from regard.masks import Mask
from regard.observation.capture.edits import Edit, edit_call
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import proof_of
from regard.observation.capture.reading import GradientInputs, Pairs, Reading
from regard.observation.capture.storage import StoredKeys, StoredTensor, StoredValue
from regard.observation.capture.torch_calls import as_computed, four_axes, mask_and_bias, rows_seen
from regard.scores import Score


class AttendAdapter(Adapter):
    """`regard.attend`, called by a user or by a layer of `regard.nn`."""

    kind = "attend"
    signature = inspect.signature(dispatch.attend)

    def reading(self, event: CallEvent) -> Reading:
        """The request as it was made."""
        bound = self.signature.bind(*event.args, **event.kwargs)
        bound.apply_defaults()
        arguments, keep = bound.arguments, event.keep
        query, key = as_computed(arguments["query"]), as_computed(arguments["key"])
        mask, bias = arguments["mask"], arguments["bias"]
        rows = None
        if isinstance(mask, Mask):
            kept_mask: StoredTensor | StoredValue[Mask] | None = keep.value(mask, "the mask")
        else:
            kept_mask, _ = mask_and_bias(mask, query.shape[:-2], keep)
            rows = rows_seen(mask, key.shape[-2]) if mask is not None and mask.dim() >= 2 else None
        if isinstance(bias, Bias):
            kept_bias: StoredTensor | StoredValue[Bias] | None = keep.value(bias, "the bias")
        else:
            _, kept_bias = mask_and_bias(bias, query.shape[:-2], keep)
        score: StoredValue[Score] | str = arguments["score"]
        if not isinstance(score, str):
            score = keep.value(arguments["score"], "the score")
        sink = arguments["sink"]
        output = event.result[0] if arguments["return_logsumexp"] else event.result
        graph = None
        if event.gradients and output.requires_grad and query.dim() == 4 and arguments["normalize"] == "softmax":
            graph = GradientInputs(arguments["value"].detach(), output)
        return Pairs(
            keep.activation(four_axes(query), "the query"),
            StoredKeys(keep.activation(four_axes(key), "the key"), rows),
            (*four_axes(query).shape[:3], key.shape[-2]),
            kept_mask,
            kept_bias,
            score,
            arguments["normalize"],
            arguments["scale"],
            None if sink is None else keep.parameter(sink, "the sink"),
            graph=graph,
            proof=None
            if arguments["dropout"]
            else proof_of(keep, four_axes(arguments["value"]), four_axes(output), rows),
        )

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        return edit_call(edit, original, args, kwargs)
