"""FlexAttention: `score_mod` and `mask_mod` are called again for the rows that are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

import regard.dispatch.attention as dispatch
from regard.dispatch.attention import Rows
from regard.formula import formula
from regard.observation.capture.edits import Edit, edit_call
from regard.observation.capture.fingerprints import (
    TensorFingerprint,
    changed_error,
    check_fingerprints,
    fingerprints_of,
)
from regard.observation.capture.interception import Adapter, CallEvent, Function
from regard.observation.capture.proof import Proof, proof_of
from regard.observation.capture.reading import GradientInputs, Reading
from regard.observation.capture.storage import StoredKeys, StoredTensor
from regard.scores.base import spread_heads
from regard.values.grid import Sizes

Mod = Callable[..., Tensor]
ROUGH = 0.3  # tolerance in half precision, relative to the largest possible output


@dataclass
class Flexed(Reading):
    """One call of `flex_attention`."""

    query: StoredTensor
    key: StoredKeys
    sizes: Sizes
    score_mod: Mod | None
    block_mask: Any
    scale: float
    captured: list[Tensor]  # tensors that the user's functions read
    fingerprints: tuple[TensorFingerprint, ...]
    sink: StoredTensor | None = None
    graph: GradientInputs | None = None
    proof: Proof | None = None

    @property
    def device(self) -> torch.device:
        return self.query.tensor.device

    @torch.no_grad()
    def weights(self, rows: Rows = None, heads: Rows = None) -> Tensor:
        self._prove()
        scores, chosen_heads = self._scores(rows, heads)
        keys, dtype = scores.shape[-1], self.query.dtype
        if self.sink is not None:
            extra = self.sink.get().to(scores)[chosen_heads].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, extra], -1)
        weights = torch.softmax(scores, -1)
        return weights.masked_fill(scores == -torch.inf, 0)[..., :keys].to(dtype)

    def _prove(self) -> None:
        """Check the last row against the proof before each use: the user's functions may read anything, which may have
        changed."""
        if self.proof is None:
            return
        scores = self._scores([-1], None)[0][0, :, 0]
        if not self.proof.holds(torch.softmax(scores, -1).masked_fill(scores == -torch.inf, 0)):
            raise changed_error("something that score_mod or mask_mod reads, or the query or the key,")

    @torch.no_grad()
    def logsumexp(self, rows: Rows) -> Tensor:
        return formula.log_sum_exp(self._scores(rows, None)[0])

    def _scores(self, rows: Rows, heads: Rows) -> tuple[Tensor, Tensor]:
        """Scores (b, heads, rows, k) with −inf where hidden, and the indices of the heads."""
        check_fingerprints(self.captured, self.fingerprints, "a tensor that score_mod or mask_mod reads")
        query, key = self.query.get(), self.key.first(self.sizes[3])
        device = query.device
        batch, count, queries, keys = self.sizes
        chosen = [
            torch.arange(size, device=device)[slice(None) if selected is None else selected]
            for size, selected in (
                (count, dispatch.selection("heads", heads, count, device)),
                (queries, dispatch.selection("rows", rows, queries, device)),
            )
        ]
        wide = formula.accumulation_dtype(query.dtype)
        query, key = (query[:, chosen[0]][:, :, chosen[1]].to(wide), spread_heads(key, count)[:, chosen[0]].to(wide))
        scores = query @ key.mT * self.scale
        index = (torch.arange(batch, device=device), *chosen, torch.arange(keys, device=device))
        if self.score_mod is not None:
            scores = _over_pairs(self.score_mod, True)(scores, *index).to(wide)
        if self.block_mask is not None:
            visible = _over_pairs(self.block_mask.mask_mod, False)(*index)
            # Pairs in blocks that the mask does not list are never computed, whatever mask_mod returns.
            (tall, across), listed = self.block_mask.BLOCK_SIZE, self.block_mask.to_dense().bool()
            visible = visible & _heads(listed, chosen[0])[:, :, chosen[1] // tall][..., index[3] // across]
            scores = scores.masked_fill(~visible, -torch.inf)
        return scores, chosen[0]


def _heads(blocks: Tensor, heads: Tensor) -> Tensor:
    return blocks if blocks.shape[1] == 1 else blocks[:, heads]


def _over_pairs(function: Mod, scored: bool) -> Mod:
    """A function of one pair, vectorised over index vectors (b), (h), (q), (k); its first argument may be a score."""
    for axis in (3, 2, 1, 0):
        axes = [0 if at == axis else None for at in range(4)]
        function = torch.vmap(function, in_dims=(0, *axes) if scored else tuple(axes))
    return function


class Flex(Adapter):
    """`flex_attention`, compiled or not, called by a user or through Hugging Face."""

    kind = "flex_attention"

    def reading(self, event: CallEvent) -> Reading:
        """Queries, keys and the user's functions; tensors that these read are checked for changes."""
        arguments = dict(zip(("query", "key", "value", "score_mod", "block_mask", "scale"), event.args, strict=False))
        arguments |= event.kwargs
        query, key, block_mask = arguments["query"], arguments["key"], arguments.get("block_mask")
        score_mod, scale = arguments.get("score_mod"), arguments.get("scale")
        captured = _tensors_in(score_mod) + _tensors_in(getattr(block_mask, "mask_mod", None))
        output = event.result[0] if isinstance(event.result, tuple) else event.result
        graph = None
        if event.gradients and output.requires_grad:
            graph = GradientInputs(arguments["value"].detach(), output)
        return Flexed(
            event.keep.activation(query, "the query"),
            StoredKeys(event.keep.activation(key, "the key"), None),
            (*query.shape[:3], key.shape[2]),
            score_mod,
            block_mask,
            query.shape[-1] ** -0.5 if scale is None else scale,
            captured,
            fingerprints_of(captured),
            self.sink(event),
            graph,
            self._proof(event, arguments["value"], output),
        )

    @staticmethod
    def _proof(event: CallEvent, value: Tensor, output: Tensor) -> Proof | None:
        """Allow for rounding: uncompiled, scores are rounded to the dtype of the queries."""
        proof = proof_of(event.keep, value, output)
        if proof is not None:
            proof.coarse = ROUGH
        return proof

    def sink(self, event: CallEvent) -> StoredTensor | None:
        """A sink logit for each head, where the caller renormalises after the call."""
        return None

    def edited(self, original: Function, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit) -> Any:
        return edit_call(edit, original, args, kwargs)


def _tensors_in(function: Any, depth: int = 4) -> list[Tensor]:
    """Tensors in the closure of a function, and in closures of functions in it."""
    tensors: list[Tensor] = []
    if not isinstance(function, FunctionType) or depth == 0:
        return tensors
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if isinstance(content, Tensor):
            tensors.append(content)
        elif isinstance(content, nn.Module):  # only its own: its parts may be the whole model
            own_tensors = (*content._parameters.values(), *content._buffers.values())
            tensors += [tensor for tensor in own_tensors if tensor is not None]
        elif isinstance(content, (tuple, list)):
            for element in content:
                tensors += [element] if isinstance(element, Tensor) else _tensors_in(element, depth - 1)
        else:
            tensors += _tensors_in(content, depth - 1)
    return tensors
