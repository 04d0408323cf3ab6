"""Dot products, capped or not: launching their forward and backward kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.triton.dot.backward import compute_row_stats, of_keys, of_queries
from regard.implementations.triton.dot.distance_gradient import of_distances
from regard.implementations.triton.dot.forward import forward
from regard.implementations.triton.launch import block_sizes
from regard.implementations.triton.launch.blocks import BlockLists, CutBlocks
from regard.implementations.triton.launch.kernel_work import (
    AnyLaunch,
    KernelWork,
    copied_in_bulk,
    described,
    laid_out,
    launch,
    strides,
    table_steps,
)
from regard.implementations.triton.launch.launching import Launch
from regard.implementations.triton.launch.pieces import CutLaunch, join_grid, join_options, join_rows, join_sums


def new_like(rows: Tensor) -> Tensor:
    """An uninitialised contiguous tensor for a gradient, whatever the strides of `rows`."""
    return torch.empty_like(rows, memory_format=torch.contiguous_format)


def new_output(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised tensors for the output and the log-sum-exp."""
    rows, width = query.shape[:3], value.shape[3]
    output = new_like(query) if query.shape[3] == width else query.new_empty((*rows, width))
    return output, query.new_empty(rows, dtype=logsumexp_dtype(query.dtype))


def logsumexp_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the log-sum-exp kept for the backward pass: its rounding scales all weights of a row."""
    return torch.float64 if dtype == torch.float32 else torch.float32


def new_row_stats(logsumexp: Tensor) -> Tensor:
    """An uninitialised tensor for two numbers of each row, (2, lines, padded rows)."""
    batch, heads, queries = logsumexp.shape
    return logsumexp.new_empty((2, batch * heads, padded_rows(queries)), dtype=torch.float32)


def padded_rows(queries: int) -> int:
    """The rows of whole blocks, of whatever size."""
    return -(-queries // 128) * 128


def run_forward(work: KernelWork) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the log-sum-exp (b,h,q) without the sink, see `logsumexp_dtype`."""
    query, key, value = work.query, work.key, work.value
    output, logsumexp = new_output(query, value)
    tensors = {"Q": query, "K": key, "V": value, "OUT": output, "LSE": logsumexp, **work.optional()}
    if work.sink is not None:
        tensors["SINK"] = work.sink

    def make(repeats: bool) -> AnyLaunch:
        return _forward_launch(work, tensors, repeats)

    launch(work.launches(), "forward", tensors, make)
    return output, logsumexp


def _forward_launch(work: KernelWork, tensors: dict[str, Any], repeats: bool) -> AnyLaunch:
    query, key, value, output = work.query, work.key, work.value, tensors["OUT"]
    shape = block_sizes.forward_shape(query.dtype, work.width, work.prepared.walk)
    (batch, heads, queries, _), width = work.prepared.sizes, value.shape[3]
    lines, across = batch * heads, block_sizes.padded(width)
    lists = work.prepared.lists(shape.block_q, shape.block_k)
    cutting = work.prepared.cut_blocks(shape.block_q, shape.block_k, False, lines)
    bulk = copied_in_bulk(key, value)
    walked = [described(rows, shape.block_k) if bulk else rows for rows in (key, value)]
    arguments = {
        "SINK": work.unused, "PARTS": work.unused, **tensors, "K": walked[0], "V": walked[1], "K_ROWS": key,
        "V_ROWS": value, "Q_STRIDES": strides(query), "K_STRIDES": strides(key), "V_STRIDES": strides(value),
        "OUT_STRIDES": strides(output), "BULK": bulk, "RISES": work.scale > 0, "SLOPED": work.sloped,
        "SINKS": work.sink is not None, **work.tables(lists), **work.ordered(lists, cutting),
        **work.unclean_keys(shape.block_k), **work.numbers(), **work.form(), **shape.options(bulk),
    }
    also = {"K_ROWS": "K", "V_ROWS": "V"}
    if cutting is None:
        programs = -(-queries // shape.block_q) * lines
        return Launch(forward, (programs, 1, 1), arguments, list(tensors), also, repeats)
    programs, sink = cutting.order.shape[0] * lines, {} if work.sink is None else {"SINK": work.sink}
    walk = Launch(forward, (programs, 1, 1), arguments, [*tensors, "PARTS"], also, repeats)
    join = Launch(
        join_rows, join_grid(cutting.splits, lines, shape.block_q),
        {
            "SINK": work.unused, "PARTS": query, "OUT": output, "LSE": tensors["LSE"], **sink, "heads": heads,
            "OUT_STRIDES": strides(output), "q_len": queries, "slots": cutting.slots, "SINKS": bool(sink),
            "WIDTH": width, "BLOCK_V": across, **join_options(cutting.splits, lines, shape.block_q),
        },
        ["PARTS", "OUT", "LSE", *sink], None, repeats,
    )
    names = list(tensors)
    numbers = cutting.slots * lines * shape.block_q * (across + 2)
    return CutLaunch(walk, [(join, tuple(names.index(name) for name in ("OUT", "LSE", *sink)))], numbers, query.device)


def _join_sums(work: KernelWork, cutting: CutBlocks, into: Tensor, block: int, before: int, repeats: bool) -> Launch:
    """The launch that adds up the pieces of a gradient; `before` numbers of another one precede them."""
    lines, width = into.shape[0] * into.shape[1], into.shape[3]
    arguments = {
        "PARTS": into, "OUT": into, "OUT_STRIDES": strides(into), "heads": into.shape[1], "length": into.shape[2],
        "before": before, "WIDTH": width, "BLOCK_V": block_sizes.padded(width),
        **join_options(cutting.splits, lines, block),
    }
    return Launch(join_sums, join_grid(cutting.splits, lines, block), arguments, ["PARTS", "OUT"], None, repeats)


class Backward:
    """One backward pass."""

    def __init__(
        self, work: KernelWork, grad: Tensor, output: Tensor, logsumexp: Tensor, grad_logsumexp: Tensor | None
    ) -> None:
        self.work, self.grad, self.output, self.logsumexp = work, laid_out(grad), laid_out(output), logsumexp
        self.query, self.key, self.value = work.query, work.key, work.value
        # `total` is the logarithm of the normaliser of the weights, `share` the gradient of the log-sum-exp, which is
        # subtracted from a row's Σ out · gradient.
        self.total, self.share = logsumexp, None
        if work.sink is not None:
            self._add_sink(work.sink, grad_logsumexp)
        if grad_logsumexp is not None:
            self.share = grad_logsumexp.masked_fill(logsumexp == -torch.inf, 0).float().contiguous()
        self.launches = work.launches(self.grad, self.output, self.total)
        self.kind = (self.grad.dtype, self.grad.stride())  # what launches depend on besides the work
        self.row_stats = new_row_stats(logsumexp)
        self.padded_rows = self.row_stats.shape[2]
        self._compute_row_stats()
        normaliser, subtracted = self.row_stats.unbind(0)
        self.tensors = {
            "Q": self.query, "K": self.key, "V": self.value, "GRAD": self.grad, "LSE": normaliser,
            "DELTA": subtracted, **work.optional(),
        }

    def _add_sink(self, sink: Tensor, grad_logsumexp: Tensor | None) -> None:
        """Weights with a sink are normalised by the log-sum-exp with it."""
        empty = self.logsumexp == -torch.inf
        self.with_sink = torch.logaddexp(self.logsumexp, sink.float().view(1, -1, 1))
        self.with_sink = self.with_sink.masked_fill(empty, -torch.inf)
        self.inner: Tensor | None = None  # Σ out · gradient of each row, where `delta` is not that
        if grad_logsumexp is None:
            self.total = self.with_sink
            return
        # The gradient of the log-sum-exp is distributed by weights without the sink. Those with it are smaller by a
        # factor for each row, by which the gradient of the output is multiplied. Multiplying the share by its inverse
        # instead would overflow where the sink lies far above the scores.
        self.inner = (self.output.float() * self.grad.float()).sum(-1)
        fade = torch.exp(self.logsumexp - self.with_sink).masked_fill(empty, 0)
        self.grad = (self.grad * fade[..., None]).to(self.grad.dtype)

    @property
    def period(self) -> int:
        """The rows of a block, where the part of a slope's bias that belongs to a row is kept with its log-sum-exp."""
        sizes = (self.query.dtype, self.work.width, self.work.prepared.walk)
        rows = block_sizes.keys_shape(*sizes).block_q
        return rows if self.work.sloped and rows == block_sizes.queries_shape(*sizes).block_q else 0

    @property
    def delta(self) -> Tensor:
        """What is subtracted in the gradient of every score of a row, (b,h,q)."""
        batch, heads, queries, _ = self.work.prepared.sizes
        return self.row_stats[1].view(batch, heads, self.padded_rows)[..., :queries]

    def _compute_row_stats(self) -> None:
        """Fill `row_stats`, see the kernel."""
        batch, heads, queries, _ = self.work.prepared.sizes
        dtype, width = self.query.dtype, self.value.shape[3]
        exact = dtype == torch.float32
        block = block_sizes.queries_shape(dtype, self.work.width).block_q if exact or block_sizes.SMALL else 64
        tensors = {"OUT": self.output, "GRAD": self.grad, "LSE": self.total.contiguous(), "ROW_STATS": self.row_stats}
        if self.share is not None:
            tensors["SHARE"] = self.share

        def make(repeats: bool) -> AnyLaunch:
            arguments = {
                "SHARE": self.work.unused, **tensors, "TABLES": self.work.prepared.tables,
                "TABLE_STRIDES": self.work.prepared.strides, "BIAS": self.work.prepared.bias_form,
                "PERIOD": self.period, "OUT_STRIDES": strides(self.output),
                "GRAD_STRIDES": strides(self.grad), "heads": heads, "q_len": queries, "padded_rows": self.padded_rows,
                "SHARES": self.share is not None, "EXACT": exact, "PRECISION": block_sizes.precision(dtype),
                "WIDTH": width, "BLOCK_V": block_sizes.padded(width), "BLOCK_Q": block,
            }
            programs = self.padded_rows // block * batch * heads
            return Launch(compute_row_stats, (programs, 1, 1), arguments, list(tensors), None, repeats)

        key = ("row_stats", *self.kind, self.total.dtype, self.output.dtype, self.output.stride(), self.share is None)
        launch(self.launches, key, tensors, make)

    def common(self, lists: BlockLists, shape: block_sizes.BlockSizes, bulk: bool) -> dict[str, Any]:
        """What all kernels take."""
        return {
            **self.tensors, "padded_rows": self.padded_rows, "Q_STRIDES": strides(self.query),
            "K_STRIDES": strides(self.key), "V_STRIDES": strides(self.value),
            "GRAD_STRIDES": strides(self.grad), **self.work.tables(lists),
            **self.work.numbers(), **self.work.form(), "HIDES_ROWS": self.work.prepared.hides_rows,
            **shape.options(bulk),
        }

    def sink(self) -> Tensor:
        """The gradient of the sink: −Σ of its weight times Σ out · gradient of each row."""
        assert self.work.sink is not None
        sink = self.work.sink.float().view(1, -1, 1)
        share = torch.exp(sink - self.with_sink).masked_fill(self.logsumexp == -torch.inf, 1)
        return -(share * (self.delta if self.inner is None else self.inner)).sum((0, 2)).float()

    def keys(self) -> tuple[Tensor, Tensor]:
        """Gradients of keys and values."""
        grad_key, grad_value = (new_like(rows) for rows in (self.key, self.value))
        tensors = {**self.tensors, "GRAD_K": grad_key, "GRAD_V": grad_value}

        def make(repeats: bool) -> AnyLaunch:
            return self._keys_launch(tensors, repeats)

        launch(self.launches, ("keys", *self.kind), tensors, make)
        return grad_key, grad_value

    def _keys_launch(self, tensors: dict[str, Any], repeats: bool) -> AnyLaunch:
        work, prepared, shape = (
            self.work,
            self.work.prepared,
            block_sizes.keys_shape(self.query.dtype, self.work.width, self.work.prepared.walk),
        )
        (batch, groups, keys, wide), group = self.key.shape, self.query.shape[1] // self.key.shape[1]
        lines, lists = batch * groups, prepared.lists(shape.block_q, shape.block_k, by_key=True)
        cutting = prepared.cut_blocks(shape.block_q, shape.block_k, True, lines, group)
        unclean = prepared.unclean_rows(shape.block_q) if prepared.hides_rows else None
        bulk = copied_in_bulk(self.query, self.grad) and (unclean is not None or not prepared.hides_rows)
        walked: dict[str, Any] = {"Q": self.query, "GRAD": self.grad, "LSE": tensors["LSE"], "DELTA": tensors["DELTA"]}
        rows = {f"{name}_ROWS": rows_walked for name, rows_walked in walked.items()}
        if bulk:
            walked |= {name: described(walked[name], shape.block_q) for name in ("Q", "GRAD")}
            for name in ("LSE", "DELTA"):
                walked[name] = TensorDescriptor.from_tensor(tensors[name], [1, shape.block_q])
        arguments = {
            "PARTS": work.unused, **self.common(lists, shape, bulk), **tensors, **walked, **rows,
            **work.ordered(lists, cutting), "UNCLEAN": work.unused if unclean is None else unclean,
            "GRAD_K_STRIDES": strides(tensors["GRAD_K"]), "GRAD_V_STRIDES": strides(tensors["GRAD_V"]), "BULK": bulk,
            "SLOPED": self.period > 0, "GROUPED": group > 1, "BY_HEAD": lists.strides[1] != 0,
            "SEEN_STRIDES": (*table_steps(work.seen), *table_steps(unclean)),
        }
        also = {name: name.removesuffix("_ROWS") for name in rows}
        if cutting is None:
            programs = -(-keys // shape.block_k) * lines
            return Launch(of_keys, (programs, 1, 1), arguments, list(tensors), also, repeats)
        programs, names = cutting.order.shape[0] * lines, [*tensors, "PARTS"]
        walk = Launch(of_keys, (programs, 1, 1), arguments, names, also, repeats)
        rows_cut = cutting.slots * lines * shape.block_k
        before = rows_cut * block_sizes.padded(wide)
        joins = [
            (_join_sums(work, cutting, tensors[name], shape.block_k, skipped, repeats), (names.index(name),))
            for name, skipped in (("GRAD_K", 0), ("GRAD_V", before))
        ]
        numbers = before + rows_cut * block_sizes.padded(self.value.shape[3])
        return CutLaunch(walk, joins, numbers, self.query.device)

    def queries(self, centers: Tensor | None, dense: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Gradients of queries and of a Gaussian's centres; those of a dense bias are added to `dense`."""
        grad_query = new_like(self.query)
        pull = None if centers is None else torch.empty_like(self.logsumexp, dtype=torch.float32)
        gradients = {"CENTERS": centers, "GRAD_CENTERS": pull, "GRAD_BIAS": dense}
        wanted = {name: tensor for name, tensor in gradients.items() if tensor is not None}
        tensors = {**self.tensors, "GRAD_Q": grad_query, **wanted}

        def make(repeats: bool) -> AnyLaunch:
            return self._queries_launch(tensors, repeats)

        spread = None if dense is None else (dense.shape, dense.stride())
        launch(self.launches, ("queries", *self.kind, centers is None, spread), tensors, make)
        return grad_query, pull

    def _queries_launch(self, tensors: dict[str, Any], repeats: bool) -> AnyLaunch:
        work, prepared = self.work, self.work.prepared
        shape = block_sizes.queries_shape(self.query.dtype, work.width, prepared.walk)
        batch, heads, queries, _ = prepared.sizes
        lines, lists, dense = (batch * heads, prepared.lists(shape.block_q, shape.block_k), tensors.get("GRAD_BIAS"))
        centered = "CENTERS" in tensors  # sums for centres are not joined
        cutting = None if centered else prepared.cut_blocks(shape.block_q, shape.block_k, False, lines)
        bulk = copied_in_bulk(self.key, self.value)
        walked = [described(rows, shape.block_k) if bulk else rows for rows in (self.key, self.value)]
        spread = (0, 0, 0, 0) if dense is None else tuple(
            0 if size == 1 else stride for size, stride in zip(dense.shape, dense.stride(), strict=True)
        )
        arguments = {
            **dict.fromkeys(("CENTERS", "GRAD_CENTERS", "GRAD_BIAS"), work.unused), "PARTS": work.unused,
            **self.common(lists, shape, bulk), **tensors, "K": walked[0], "V": walked[1], "K_ROWS": self.key,
            "V_ROWS": self.value, **work.ordered(lists, cutting), **work.unclean_keys(shape.block_k),
            "BIAS_STRIDES": spread, "GRAD_Q_STRIDES": strides(tensors["GRAD_Q"]), "CENTERED": centered,
            "DENSE": dense is not None, "SLOPED": self.period > 0, "BULK": bulk,
        }
        also = {"K_ROWS": "K", "V_ROWS": "V"}
        if cutting is None:
            programs = -(-queries // shape.block_q) * lines
            return Launch(of_queries, (programs, 1, 1), arguments, list(tensors), also, repeats)
        programs, names = cutting.order.shape[0] * lines, [*tensors, "PARTS"]
        walk = Launch(of_queries, (programs, 1, 1), arguments, names, also, repeats)
        join = _join_sums(work, cutting, tensors["GRAD_Q"], shape.block_q, 0, repeats)
        numbers = cutting.slots * lines * shape.block_q * block_sizes.padded(self.query.shape[3])
        return CutLaunch(walk, [(join, (names.index("GRAD_Q"),))], numbers, self.query.device)

    def distances(self) -> Tensor:
        """The gradient of a bias for each distance from 1 − q to k − 1, (h, q + k − 1)."""
        shape = block_sizes.distances_shape(self.query.dtype, self.work.width)
        batch, heads, queries, keys = self.work.prepared.sizes
        size, before = shape.block_k, -(-queries // shape.block_q)
        diagonals = before + -(-keys // size) - 1
        ahead, behind = (torch.empty(heads, diagonals, size, device=self.query.device) for _ in range(2))
        tensors = {**self.tensors, "AHEAD": ahead, "BEHIND": behind}

        def make(repeats: bool) -> AnyLaunch:
            lists = self.work.prepared.lists(shape.block_q, shape.block_k)
            arguments = {**self.common(lists, shape, False), **tensors, "batches": batch}
            return Launch(of_distances, (diagonals * heads, 1, 1), arguments, list(tensors), None, repeats)

        launch(self.launches, ("distances", *self.kind), tensors, make)
        # The first entry of diagonal 0 is the distance (1 − before)·size; what wraps around lies one block earlier.
        by_distance = torch.zeros(heads, (diagonals + 1) * size, device=self.query.device)
        by_distance[:, size:] += ahead.flatten(1)
        by_distance[:, :-size] += behind.flatten(1)
        start = before * size - (queries - 1)
        return by_distance[:, start : start + queries + keys - 1]
