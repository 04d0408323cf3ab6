"""Attention under sigmoid, sparsemax, entmax15 or hard by fused kernels: launches, gradients, and what is refused.

`auto` takes them up to the width at which `benchmarks/gpu_check.py --stages normalizers` has checked them on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.core.autocast import without_autocast
from regard.core.request import Request
from regard.implementations.packing import recorded_backward, spec_of
from regard.implementations.triton import block_sizes, normalized, normalized_backward
from regard.implementations.triton.blocks import BlockLists, prepare
from regard.implementations.triton.dot import new_like
from regard.implementations.triton.kernel_work import (
    KernelWork,
    copied_in_bulk,
    described,
    launch,
    strides,
)
from regard.implementations.triton.launching import Launch, on_device
from regard.implementations.triton.op import kernel_work
from regard.normalizers import Entmax15, Hardmax, Sigmoid, Softmax, Sparsemax
from regard.scores.dot import SoftcapScore

KINDS = (Sigmoid, Sparsemax, Entmax15, Hardmax)
_NOT_TAKEN = ("SEED", "pieces", "slots", "threshold", "keep", "DROPS")
_CHECKED = {
    "sigmoid": 256,
    "entmax15": 64,
    "sparsemax": 64,
    "hard": 256,
}  # widths on an H200, see `only_by_name`
_MOST_KEYS = 1 << 24  # the index of a chosen key is kept in float32


def refuse(request: Request) -> str | None:
    """Why the kernels cannot run a request whose normaliser is not softmax, or None."""
    name = request.normalizer.name
    if type(request.normalizer) not in KINDS:
        return f"its kernels know softmax, sigmoid, sparsemax, entmax15 and hard, not {name}"
    if not (request.score.is_dot or isinstance(request.score, SoftcapScore)):
        return f"its kernels for {name} compute dot products, not {request.score.name}"
    for given, words in (
        (request.sink is not None, "a sink"),
        (request.dropout > 0, "dropout"),
        (request.want_logsumexp, "a log-sum-exp"),
        (request.bias is not None and any(one.requires_grad for one in request.bias.tensors), "a learned bias"),
        (torch.compiler.is_compiling(), "torch.compile"),
        (request.sizes[3] >= _MOST_KEYS, f"{_MOST_KEYS} keys"),
    ):  # fmt: skip
        if given:
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
        found: Tensor = NormalizedFunction.apply(request, query, key, value, *request.value_tensors())
        return found
    return _run_forward(_work_of(query, key, value, request), request.normalizer.name)[0].to(query.dtype)


class NormalizedFunction(torch.autograd.Function):
    """Attention whose backward pass recomputes its weights from two numbers of each row."""

    @staticmethod
    def forward(
        ctx: Any, request: Request, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor
    ) -> Tensor:
        output, *rows = _run_forward(_work_of(query, key, value, request), request.normalizer.name)
        ctx.save_for_backward(query, key, value, *rows, *tensors)
        ctx.set_materialize_grads(False)
        ctx.values = (request.score, request.mask, request.bias, request.normalizer)
        ctx.scale = request.scale
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        query, key, value, largest, choice, *tensors = ctx.saved_tensors
        if grad is None:
            return (None,) * (4 + len(tensors))
        score, mask, bias, normalizer = ctx.values
        with without_autocast(query.device):
            if torch.is_grad_enabled():
                inputs, spec = [query, key, value, None, *tensors], spec_of(*ctx.values)
                found = recorded_backward(inputs, None, spec, ctx.scale, 0.0, grad, None)
                return (None, *found[:3], *found[4:])
            request = Request(query, key, value, score, mask, bias, normalizer, ctx.scale, 0.0, None, False)
            work = _work_of(query, key, value, request)
            parts = _run_backward(work, normalizer.name, grad, largest, choice, ctx.needs_input_grad[1:4])
            dtypes = (query.dtype, key.dtype, value.dtype)
            moved = [
                None if part is None else part.to(dtype) for part, dtype in zip(parts, dtypes, strict=True)
            ]
        return (None, *moved, *[None] * len(tensors))


def _work_of(query: Tensor, key: Tensor, value: Tensor, request: Request) -> KernelWork:
    prepared = prepare(request.mask, request.bias, request.sizes, query.device)
    return kernel_work(query, key, value, None, None, request.score, prepared, request.scale, 0.0)


def _run_forward(work: KernelWork, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the two numbers of each row (b,h,q) that the backward pass needs."""
    query, value = work.query, work.value
    batch, heads, queries, _ = work.prepared.sizes
    output = query.new_empty((batch, heads, queries, value.shape[3]))
    largest, choice = (query.new_empty((batch, heads, queries), dtype=torch.float32) for _ in range(2))
    tensors = {
        "Q": query, "K": work.key, "V": value, "OUT": output, "LARGEST": largest, "CHOICE": choice, **work.optional()
    }  # fmt: skip

    def make(repeats: bool) -> Launch:
        shape = block_sizes.forward_shape(query.dtype, work.width)
        arguments = {
            **_common(work, name, work.prepared.lists(shape.block_q, shape.block_k), shape), **tensors,
            **_walked(work.seen is None, shape.block_k, K=work.key, V=value), "OUT_STRIDES": strides(output),
            "MOST": normalized.MOST_STEPS,
        }  # fmt: skip
        programs = -(-queries // shape.block_q) * batch * heads
        return Launch(normalized.forward, (programs, 1, 1), arguments, list(tensors), None, repeats)

    with on_device(query):
        launch(work.launches(), (name, "forward"), tensors, make)
    return output, largest, choice


def _run_backward(
    work: KernelWork, name: str, grad: Tensor, largest: Tensor, choice: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    query, key, value = work.query, work.key, work.value
    grad = grad.to(query.dtype).contiguous()
    delta = torch.zeros_like(largest)
    given = {
        "Q": query, "K": key, "V": value, "GRAD": grad, "LARGEST": largest, "CHOICE": choice, "DELTA": delta,
        **work.optional(),
    }  # fmt: skip
    grad_query = grad_key = grad_value = None
    launches = work.launches(grad)
    with on_device(query):
        if name == "hard":
            grad_query = torch.zeros_like(query) if needed[0] else None
        elif any(needed):  # the kernel of the keys takes its DELTA
            grad_query = new_like(query)
            tensors = {**given, "GRAD_Q": grad_query}
            launch(
                launches,
                (name, "queries"),
                tensors,
                lambda repeats: _queries_launch(work, name, tensors, repeats),
            )
        if needed[1] or needed[2]:
            grad_key, grad_value = new_like(key), new_like(value)
            pair = {**given, "GRAD_K": grad_key, "GRAD_V": grad_value}
            launch(launches, (name, "keys"), pair, lambda repeats: _keys_launch(work, name, pair, repeats))
    return grad_query, grad_key, grad_value


def _queries_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    batch, heads, queries, _ = work.prepared.sizes
    shape = block_sizes.queries_shape(work.query.dtype, work.width)
    arguments = {
        **_common(work, name, work.prepared.lists(shape.block_q, shape.block_k), shape), **tensors,
        **_walked(work.seen is None, shape.block_k, K=work.key, V=work.value),
        "GRAD_STRIDES": strides(tensors["GRAD"]), "GRAD_Q_STRIDES": strides(tensors["GRAD_Q"]),
    }  # fmt: skip
    programs = -(-queries // shape.block_q) * batch * heads
    return Launch(normalized_backward.of_queries, (programs, 1, 1), arguments, list(tensors), None, repeats)


def _keys_launch(work: KernelWork, name: str, tensors: dict[str, Any], repeats: bool) -> Launch:
    batch, groups, keys, _ = work.key.shape
    shape = block_sizes.keys_shape(work.query.dtype, work.width)
    lists = work.prepared.lists(shape.block_q, shape.block_k, by_key=True)
    arguments = {
        **_common(work, name, lists, shape), **tensors,
        **_walked(not work.prepared.hides_rows, shape.block_q, Q=work.query, GRAD=tensors["GRAD"]),
        "GROUPED": work.query.shape[1] > groups, "GRAD_STRIDES": strides(tensors["GRAD"]),
        "GRAD_K_STRIDES": strides(tensors["GRAD_K"]), "GRAD_V_STRIDES": strides(tensors["GRAD_V"]),
    }  # fmt: skip
    programs = -(-keys // shape.block_k) * batch * groups
    return Launch(normalized_backward.of_keys, (programs, 1, 1), arguments, list(tensors), None, repeats)


def _walked(all_are_read: bool, block: int, **rows: Tensor) -> dict[str, Any]:
    """The rows that a kernel goes over, as descriptors for the copy engine where it may and can read them."""
    bulk = all_are_read and copied_in_bulk(*rows.values())
    return {name: described(part, block) if bulk else part for name, part in rows.items()} | {"BULK": bulk}


def _common(work: KernelWork, name: str, lists: BlockLists, shape: block_sizes.BlockSizes) -> dict[str, Any]:
    """What all three kernels take, besides tensors that change; no dropout, no pieces of long rows."""
    found = {
        **work.tables(lists), **work.ordered(lists, None), **work.numbers(), **work.form(), "KIND": name,
        **shape.options(limited=False),
        "Q_STRIDES": strides(work.query), "K_STRIDES": strides(work.key), "V_STRIDES": strides(work.value),
    }  # fmt: skip
    return {key: one for key, one in found.items() if key not in _NOT_TAKEN}
