"""Attention under sigmoid, sparsemax, entmax15 or hard by fused kernels: launches, gradients, and what is refused.

`auto` takes them up to the width at which `bench/gpu_check.py --stages normalizers` has checked them on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.formula.request import Request
from regard.implementations.packing import recorded_backward, spec_of
from regard.implementations.triton.dot.launches import new_like
from regard.implementations.triton.dot.op import kernel_work
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.blocks import BlockLists, prepare
from regard.implementations.triton.launch.kernel_work import KernelWork, copied_in_bulk, described, launch, strides
from regard.implementations.triton.launch.launching import Launch, on_device
from regard.implementations.triton.normalized import backward as normalized_backward
from regard.implementations.triton.normalized import forward as normalized
from regard.implementations.triton.normalized import rows as normalized_rows
from regard.normalizers import Entmax15, Hardmax, Sigmoid, Softmax, Sparsemax
from regard.scores.dot import SoftcapScore
from regard.support.autocast import without_autocast
from regard.support.batched_gradients import for_one_gradient

KINDS = (Sigmoid, Sparsemax, Entmax15, Hardmax)
_TOLERANCE, _TOLERANCE_OF_HALF = 1e-7, 1e-5  # bounds of the error of a threshold, mostly far from reached
_ROW_NUMBERS = {  # what the kernel of the keys reads of each row
    "sigmoid": ("LARGEST",),
    "hard": ("LARGEST", "CHOICE"),
    "sparsemax": ("LARGEST", "CHOICE", "DELTA"),
    "entmax15": ("LARGEST", "CHOICE", "DELTA"),
}
_CHECKED = {"sigmoid": 256, "entmax15": 64, "sparsemax": 64, "hard": 256}  # widths on an H200, see `only_by_name`
_MOST_KEYS = 1 << 24  # the index of a chosen key is kept in float32


def refuse(request: Request) -> str | None:
    """Why the kernels cannot run a request whose normaliser is not softmax, or None."""
    name = request.normalizer.name
    if type(request.normalizer) not in KINDS:
        return f"its kernels know softmax, sigmoid, sparsemax, entmax15 and hard, not {name}"
    if not (request.score.is_dot or isinstance(request.score, SoftcapScore)):
        return f"its kernels for {name} compute dot products, not {request.score.name}"
    for present, words in (
        (request.sink is not None, "a sink"),
        (request.dropout > 0, "dropout"),
        (request.want_logsumexp, "a log-sum-exp"),
        (request.bias is not None and any(tensor.requires_grad for tensor in request.bias.tensors), "a learned bias"),
        (torch.compiler.is_compiling(), "torch.compile"),
        (request.sizes[3] >= _MOST_KEYS, f"{_MOST_KEYS} keys"),
    ):
        if present:
            return f"its kernels for {name} do not support {words}"
    return None


def only_by_name(request: Request) -> str | None:
    """Why `auto` must not take the kernels although they can run the request, or None."""
    if isinstance(request.normalizer, Softmax):
        return None
    name, width = request.normalizer.name, max(request.query.shape[3], request.value.shape[3])
    most = _CHECKED.get(name, 0)
    if width <= most:
        return None
    return f"its kernels for {name} have been checked on a GPU for widths up to {most}; impl='triton' asks for them"


def attend(request: Request) -> Tensor:
    """The output (b,h,q,v) of a request whose score is one of pairs."""
    query, key, value = request.query, request.key, request.value
    if request.needs_grad:
        output: Tensor = NormalizedFunction.apply(request, query, key, value, *request.value_tensors())
        return output
    return _run_forward(_work_of(query, key, value, request), request.normalizer.name)[0].to(query.dtype)


class NormalizedFunction(torch.autograd.Function):
    """Attention whose backward pass recomputes its weights from two numbers of each row."""

    @staticmethod
    def forward(ctx: Any, request: Request, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor) -> Tensor:
        output, rows = _run_forward(_work_of(query, key, value, request), request.normalizer.name)
        ctx.save_for_backward(query, key, value, rows, *tensors)
        ctx.set_materialize_grads(False)
        ctx.values = (request.score, request.mask, request.bias, request.normalizer)
        ctx.scale = request.scale
        return output.to(query.dtype)

    @staticmethod
    @for_one_gradient
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        query, key, value, rows, *tensors = ctx.saved_tensors
        if grad is None:
            return (None,) * (4 + len(tensors))
        score, mask, bias, normalizer = ctx.values
        with without_autocast(query.device):
            if torch.is_grad_enabled():
                inputs, spec = [query, key, value, None, *tensors], spec_of(*ctx.values)
                gradients = recorded_backward(inputs, None, spec, ctx.scale, 0.0, grad, None)
                return (None, *gradients[:3], *gradients[4:])
            request = Request(query, key, value, score, mask, bias, normalizer, ctx.scale, 0.0, None, False)
            work = _work_of(query, key, value, request)
            grads = _run_backward(work, normalizer.name, grad, rows, ctx.needs_input_grad[1:4])
            dtypes = (query.dtype, key.dtype, value.dtype)
            moved = [None if wide is None else wide.to(dtype) for wide, dtype in zip(grads, dtypes, strict=True)]
        return (None, *moved, *[None] * len(tensors))


def _work_of(query: Tensor, key: Tensor, value: Tensor, request: Request) -> KernelWork:
    prepared = prepare(request.mask, request.bias, request.sizes, query.device)
    return kernel_work(query, key, value, None, None, request.score, prepared, request.scale, 0.0)


def _run_forward(work: KernelWork, name: str) -> tuple[Tensor, Tensor]:
    """The output, and the two numbers of each row that the backward pass needs, (2, lines, padded rows)."""
    query, value = work.query, work.value
    batch, heads, queries, _ = work.prepared.sizes
    output = query.new_empty((batch, heads, queries, value.shape[3]))
    rows = query.new_empty((2, batch * heads, _padded_rows(work)), dtype=torch.float32)
    largest, choice = rows.unbind(0)
    inputs = {"Q": query, "K": work.key, "LARGEST": largest, "CHOICE": choice, **work.optional()}
    tensors = {**inputs, "V": value, "OUT": output}
    with on_device(query):
        launches = work.launches()
        if name != "sigmoid":
            launch(launches, (name, "rows"), inputs, lambda repeats: _rows_launch(work, name, inputs, repeats))
        launch(launches, (name, "forward"), tensors, lambda repeats: _forward_launch(work, name, tensors, repeats))
    return output, rows


def _padded_rows(work: KernelWork) -> int:
    """Rows of whole blocks: the kernels that write numbers of rows have blocks at least as long as those that read."""
    return -(-work.prepared.sizes[2] // 128) * 128


def _run_backward(
    work: KernelWork, name: str, grad: Tensor, rows: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    query, key, value = work.query, work.key, work.value
    grad = grad.to(query.dtype).contiguous()
    largest, choice = rows.unbind(0)
    has_delta = "DELTA" in _ROW_NUMBERS[name]
    delta = torch.empty_like(largest) if has_delta else largest
    inputs = {
        "Q": query, "K": key, "V": value, "GRAD": grad, "LARGEST": largest, "CHOICE": choice, "DELTA": delta,
        **work.optional(),
    }
    grad_query = grad_key = grad_value = None
    launches = work.launches(grad)
    with on_device(query):
        if name == "hard":
            grad_query = torch.zeros_like(query) if needed[0] else None
        elif needed[0] or (has_delta and any(needed)):  # the kernel of the keys takes its DELTA
            grad_query = new_like(query)
            tensors = {**inputs, "GRAD_Q": grad_query}
            launch(launches, (name, "queries"), tensors, lambda repeats: _queries_launch(work, name, tensors, repeats))
        if needed[1] or needed[2]:
            grad_key, grad_value = new_like(key), new_like(value)
            pair = {**inputs, "GRAD_K": grad_key, "GRAD_V": grad_value}
            launch(launches, (name, "keys"), pair, lambda repeats: _keys_launch(work, name, pair, repeats))
    return grad_query, grad_key, grad_value


def _rows_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    shape = block_sizes.rows_shape(work.query.dtype, work.width)
    tolerance = _TOLERANCE if work.query.dtype == torch.float32 else _TOLERANCE_OF_HALF
    more = {
        **_walked(work.seen is None, shape.block_k, K=work.key), "CURVED": normalized_rows.CURVED_STEPS,
        "MOST": normalized_rows.MOST_WALKS, "tolerance": tolerance,
    }
    return _by_queries(normalized_rows.find_rows, work, name, shape, tensors, more, repeats)


def _forward_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    shape = block_sizes.forward_shape(work.query.dtype, work.width)
    more = {
        **_walked(work.seen is None, shape.block_k, V=work.value, **_unless_hard(name, K=work.key)),
        "OUT_STRIDES": strides(tensors["OUT"]),
    }
    return _by_queries(normalized.forward, work, name, shape, tensors, more, repeats)


def _queries_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    shape = block_sizes.queries_shape(work.query.dtype, work.width)
    more = {
        **_walked(work.seen is None, shape.block_k, K=work.key, V=work.value),
        "GRAD_STRIDES": strides(tensors["GRAD"]), "GRAD_Q_STRIDES": strides(tensors["GRAD_Q"]),
    }
    return _by_queries(normalized_backward.of_queries, work, name, shape, tensors, more, repeats)


def _by_queries(
    kernel: Any, work: KernelWork, name: str, shape: block_sizes.BlockSizes, tensors: dict[str, Any],
    more: dict[str, Any], repeats: bool,
) -> Launch:
    """The launch of a kernel with a program for each block of queries."""
    batch, heads, queries, _ = work.prepared.sizes
    lists = work.prepared.lists(shape.block_q, shape.block_k)
    arguments = _arguments(kernel, work, name, lists, shape, {**tensors, **more})
    programs = -(-queries // shape.block_q) * batch * heads
    return Launch(kernel, (programs, 1, 1), arguments, list(tensors), None, repeats)


def _keys_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    batch, groups, keys, _ = work.key.shape
    shape = block_sizes.keys_shape(work.query.dtype, work.width, name)
    lists = work.prepared.lists(shape.block_q, shape.block_k, by_key=True)
    rows = {"GRAD": tensors["GRAD"], **_unless_hard(name, Q=work.query)}
    walked = _walked(not work.prepared.hides_rows, shape.block_q, **rows)
    if walked["BULK"]:
        for name_of_row in _ROW_NUMBERS[name]:
            walked[name_of_row] = TensorDescriptor.from_tensor(tensors[name_of_row], [1, shape.block_q])
    more = {
        **walked, "GROUPED": work.query.shape[1] > groups, "GRAD_STRIDES": strides(tensors["GRAD"]),
        "GRAD_K_STRIDES": strides(tensors["GRAD_K"]), "GRAD_V_STRIDES": strides(tensors["GRAD_V"]),
    }
    kernel = normalized_backward.of_keys
    arguments = _arguments(kernel, work, name, lists, shape, {**tensors, **more})
    programs = -(-keys // shape.block_k) * batch * groups
    return Launch(kernel, (programs, 1, 1), arguments, list(tensors), None, repeats)


def _walked(all_are_read: bool, block: int, **rows: Tensor) -> dict[str, Any]:
    """The rows that a kernel goes over, as descriptors for the copy engine where it may and can read them."""
    bulk = all_are_read and copied_in_bulk(*rows.values())
    return {name: described(tensor, block) if bulk else tensor for name, tensor in rows.items()} | {"BULK": bulk}


def _unless_hard(name: str, **rows: Tensor) -> dict[str, Tensor]:
    """Rows that make scores, which hard does not need any more; what a kernel does not read gets no descriptor."""
    return {} if name == "hard" else rows


def _arguments(
    kernel: Any, work: KernelWork, name: str, lists: BlockLists, shape: block_sizes.BlockSizes, more: dict[str, Any]
) -> dict[str, Any]:
    """Those of the arguments of all attention kernels that this one takes, with `more`, and the compiler's options."""
    options = shape.options(limited=bool(more["BULK"]))
    arguments = {
        **work.tables(lists), **work.ordered(lists, None), **work.numbers(), **work.form(), "KIND": name,
        "padded_rows": _padded_rows(work), "Q_STRIDES": strides(work.query), "K_STRIDES": strides(work.key),
        "V_STRIDES": strides(work.value), **options, **more,
    }
    return {key: argument for key, argument in arguments.items() if key in kernel.arg_names or key in options}
