"""Counts the attention calls of a forward pass without regard, from every operation below autograd.

An attention call is one of two things. Fused: an operation of torch that attends by itself. Written out: a softmax of
scores that come from a product of two activations, whose weights enter another product with an activation. A product
with a parameter (or a view, cast or scaled copy of one) is a linear layer, so a router's softmax(x @ W) is none.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from tests.architectures import edges

aten = torch.ops.aten
FUSED = {
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math_for_mps",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
}
WITH_WEIGHTS = {"_scaled_dot_product_flash_attention_for_cpu"}  # their weights can be recomputed here
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "mv": 0, "dot": 0, "_grouped_mm": 0}
SOFTMAXES = {"_softmax", "_safe_softmax"}
# What separates layers: their outputs are activations like any other.
LAYERS = {
    "convolution",
    "_convolution",
    "native_layer_norm",
    "native_group_norm",
    "native_batch_norm",
    "cudnn_batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_fused_rms_norm",
    "embedding",
    "_embedding_bag",
    "_log_softmax",
    "mkldnn_rnn_layer",
    "gru",
    "lstm",
    "grid_sampler_2d",
}
MOST_KEPT = 1 << 21  # of maps with more entries, only the first and the last row are kept for comparison


@dataclass(eq=False)
class Call:
    """One attention call of a pass."""

    kind: str  # "fused" or "written out"
    op: str
    path: str  # of the innermost module
    module: str  # its class
    where: str  # file:line
    shape: tuple[int, ...]  # of the scores, or of the query
    dim: int = -1
    scored_by: str = ""
    mixed_by: str = ""
    weights: Tensor | None = None


@dataclass
class Marks:
    """What is known of a tensor."""

    root: int  # a number for its storage
    # A parameter, or computed from parameters by nothing but elementwise operations.
    parameter: bool = False
    # The shape of the product of two activations that it is computed from, and the operation.
    scores: tuple[int, ...] | None = None
    scored_by: str = ""
    # Two activations multiplied element by element, not summed yet.
    multiplied: tuple[int, ...] | None = None
    # The softmaxes it is computed from; those of them multiplied with an activation, not summed yet.
    softmaxes: frozenset[Call] = frozenset()
    weighted: frozenset[Call] = frozenset()
    # The exponentials it is computed from, and those summed over the edges of a node.
    exponents: frozenset[int] = frozenset()
    sums: frozenset[int] = frozenset()


class Oracle(TorchDispatchMode):
    """Counts the attention calls of the code inside it; `calls` are in the order of their softmaxes."""

    def __init__(self, model: nn.Module | None = None, keep_weights: bool = True) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.order: dict[Call, int] = {}
        self.keep_weights = keep_weights
        self.marks = WeakTensorKeyDictionary()
        self.written: dict[int, Marks] = {}  # by root: what was written in place into a tensor
        self.roots = self.exponentials = 0
        self.paths: dict[int, str] = {}
        if model is not None:
            self.paths = {id(module): path for path, module in model.named_modules()}
            for parameter in model.parameters():
                self._of(parameter).parameter = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else func.name()
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
        outputs = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
        if name in FUSED:
            self._note_fused(name, args, kwargs)
            for out in outputs:
                self.marks[out] = Marks(self._new_root())
            return result
        marks = self._after(name, args, given, outputs)
        inplace = name.endswith("_") and not name.endswith("__") and bool(given)
        for out in outputs:
            self._mark(out, marks, given, inplace)
        return result

    def _after(self, name: str, args: Any, given: list[Tensor], outputs: list[Tensor]) -> Marks:
        """The marks of the outputs of an operation."""
        found = [self._of(part) for part in given]
        if name in PRODUCTS:
            return self._product(name, args[PRODUCTS[name]], args[PRODUCTS[name] + 1], outputs)
        if name in LAYERS or not outputs:
            return Marks(0)
        floats = [mark for mark, part in zip(found, given, strict=True) if part.is_floating_point()]
        after = Marks(0)
        after.parameter = bool(floats) and all(mark.parameter for mark in floats)
        after.softmaxes = frozenset().union(*(mark.softmaxes for mark in found))
        after.weighted = frozenset().union(*(mark.weighted for mark in found))
        for mark in found:
            if mark.scores is not None and after.scores is None:
                after.scores, after.scored_by = mark.scores, mark.scored_by
            after.multiplied = after.multiplied or mark.multiplied
        over_edges = edges.follow(self, name, found, outputs, after)
        if over_edges is not None:
            self.order[over_edges] = len(self.order)
            return Marks(0, softmaxes=frozenset([over_edges]))
        if name in SOFTMAXES or name == "exp":
            if after.scores is None or (name == "exp" and after.scored_by not in PRODUCTS):
                return Marks(0, exponents=after.exponents)
            dim = args[1] if name in SOFTMAXES else -1
            call = self.call("written out", name, tuple(outputs[0].shape), dim)
            call.scored_by = after.scored_by
            if self.keep_weights and name in SOFTMAXES and outputs[0].ndim > 1:
                rows = rows_to_compare(outputs[0].shape)
                call.weights = outputs[0].detach()[..., slice(None) if rows is None else rows, :].clone()
            self.order[call] = len(self.order)
            return Marks(0, softmaxes=frozenset([call]), exponents=after.exponents)
        if name in ("mul", "mul_") and len(floats) == 2:
            self._multiplied(found, given, outputs, after)
        elif name in ("sum", "mean"):
            self.count(after.weighted, "mul+sum")
            after.weighted = frozenset()
            if after.multiplied and after.scores is None:
                after.scores, after.scored_by = tuple(outputs[0].shape), "mul+sum"
            after.multiplied = None
        return after

    def _product(self, name: str, left: Tensor, right: Tensor, outputs: list[Tensor]) -> Marks:
        """A product of two activations makes scores, or mixes values by weights; one with a parameter does neither."""
        one, two = self._of(left), self._of(right)
        if one.parameter or two.parameter:
            return self._over_heads(one if two.parameter else two, left if two.parameter else right, outputs)
        self.count(one.softmaxes | two.softmaxes, name)
        return Marks(0, scores=tuple(outputs[0].shape), scored_by=name)

    def _over_heads(self, mark: Marks, tensor: Tensor, outputs: list[Tensor]) -> Marks:
        """A linear layer over the heads of scores or weights (talking heads) leaves them scores or weights.

        Scores (b·h, n, m) come as (b·n·m, h); what leaves attention (b·h, n, d) comes as (b·n, h·d), and is neither.
        """
        shape = mark.scores
        if mark.softmaxes:
            shape = max((call.shape for call in mark.softmaxes), key=len)
        if shape is None or len(shape) < 3:
            return Marks(0)
        batches, features = math.prod(shape[:-2]), tensor.shape[-1]
        same = outputs[0].numel() == tensor.numel() == math.prod(shape)
        if same and features <= batches and batches % features == 0:
            return Marks(0, scores=mark.scores, scored_by=mark.scored_by, softmaxes=mark.softmaxes)
        return Marks(0)

    def _multiplied(self, found: list[Marks], given: list[Tensor], outputs: list[Tensor], after: Marks) -> None:
        """Scores or mixing written as a product of elements and a sum."""
        one, two = found[0], found[1]
        broad = all(part.ndim >= 3 and part.shape != outputs[0].shape for part in given)
        if broad and not (one.parameter or two.parameter or one.softmaxes or two.softmaxes) and not after.scores:
            after.multiplied = tuple(outputs[0].shape)
        weights, values = (one, given[1]) if one.softmaxes else (two, given[0])
        if weights.softmaxes and not (one.softmaxes and two.softmaxes) and outputs[0].ndim >= 2:
            held = given[0] if one.softmaxes else given[1]
            if 1 in held.shape and held.shape != values.shape:
                after.weighted = after.weighted | weights.softmaxes

    def count(self, found: frozenset[Call], mixed_by: str) -> None:
        for call in sorted(found, key=self.order.__getitem__):
            if not call.mixed_by:
                call.mixed_by = mixed_by
                self.calls.append(call)
                self.calls.sort(key=self.order.__getitem__)

    def _note_fused(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        call = self.call("fused", name, tuple(args[0].shape), -1)
        call.mixed_by = name
        if self.keep_weights and name in WITH_WEIGHTS:
            call.weights = _weights(*args, **kwargs)
        self.order[call] = len(self.order)
        self.calls.append(call)

    # What is known about tensors.

    def _new_root(self) -> int:
        self.roots += 1
        return self.roots

    def _of(self, tensor: Tensor) -> Marks:
        mark = self.marks.get(tensor)
        if mark is None:
            mark = self.marks[tensor] = Marks(self._new_root())
        more = self.written.get(mark.root)
        return mark if more is None else _joined(mark, more)

    def _mark(self, out: Tensor, marks: Marks, given: list[Tensor], inplace: bool) -> None:
        known = self.marks.get(out)
        if inplace and known is not None:
            before = self.written.get(known.root, Marks(known.root))
            self.written[known.root] = _joined(before, marks)
            self.marks[out] = replace(marks, root=known.root)
            return
        root = 0
        for part in given:
            if _share(out, part):
                root = self._of(part).root
                break
        self.marks[out] = replace(marks, root=root or self._new_root())

    def call(self, kind: str, op: str, shape: tuple[int, ...], dim: int) -> Call:
        """A call with the module and the line it comes from."""
        where, path, module = "", "", ""
        for frame in _frames():
            file = frame.f_code.co_filename
            if not where and "/torch/" not in file and "einops" not in file and file != __file__:
                where = f"{_short(file)}:{frame.f_lineno}"
            if not module and frame.f_code.co_argcount:
                first = frame.f_locals.get(frame.f_code.co_varnames[0])
                if isinstance(first, nn.Module) and (not self.paths or id(first) in self.paths):
                    module, path = type(first).__name__, self.paths.get(id(first), "")
            if where and module:
                break
        return Call(kind, op, path, module, where, shape, dim)


def _joined(one: Marks, two: Marks) -> Marks:
    scores, by = (one.scores, one.scored_by) if one.scores else (two.scores, two.scored_by)
    return Marks(
        one.root,
        one.parameter and two.parameter,
        scores,
        by,
        one.multiplied or two.multiplied,
        one.softmaxes | two.softmaxes,
        one.weighted | two.weighted,
        one.exponents | two.exponents,
        one.sums | two.sums,
    )


def _share(one: Tensor, two: Tensor) -> bool:
    try:
        return one.untyped_storage()._cdata == two.untyped_storage()._cdata
    except (RuntimeError, NotImplementedError):  # sparse, nested and fake tensors
        return False


def _weights(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: float | None = None,
    **_: Any,
) -> Tensor | None:
    """The weights of a fused call, by the formula, in float64."""
    if k.shape[1] != q.shape[1]:
        k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    causal = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    rows = rows_to_compare((*q.shape[:-1], k.shape[-2]))
    if rows is not None:
        q, causal = q[..., rows, :], causal[rows]
        attn_mask = attn_mask if attn_mask is None or attn_mask.shape[-2] == 1 else attn_mask[..., rows, :]
    scores = q.double() @ k.double().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(~causal, -torch.inf)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    weights = torch.softmax(scores, -1)
    return weights.masked_fill((scores == -torch.inf).all(-1, keepdim=True), 0)


def rows_to_compare(shape: Sequence[int]) -> list[int] | None:
    """The rows of a map (…, queries, keys) that are compared; None: all."""
    return None if math.prod(shape) <= MOST_KEPT else [0, shape[-2] - 1]


def _frames() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _short(file: str) -> str:
    """A path relative to its package."""
    for mark in ("/site-packages/", "/tests/"):
        if mark in file:
            return file.rpartition(mark)[2] if mark == "/site-packages/" else mark[1:] + file.partition(mark)[2]
    return file.rpartition("/")[2]
