"""Launching the kernels for dot products: their arguments, from those of an operator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.implementations.triton import block_sizes
from regard.implementations.triton.backward import compute_row_stats, of_keys, of_queries
from regard.implementations.triton.blocks import BlockLists, PreparedMask
from regard.implementations.triton.distance_gradient import of_distances
from regard.implementations.triton.forward import forward
from regard.implementations.triton.relaunch import launch
from regard.masks.visibility import hidden_queries
from regard.scores import Score
from regard.scores.dot import SoftcapScore


@dataclass(frozen=True)
class KernelWork:
    """One attention, in the form that every kernel takes."""

    query: Tensor
    key: Tensor
    value: Tensor
    sink: Tensor | None
    seed: Tensor | None
    score: Score
    prepared: PreparedMask
    scale: float
    dropout: float

    @property
    def width(self) -> int:
        """The padded width of keys or values, whichever is larger."""
        return block_sizes.padded(max(self.query.shape[3], self.value.shape[3]))

    def numbers(self) -> dict[str, Any]:
        """The arguments that are sizes, factors and thresholds."""
        _, heads, queries, keys = self.prepared.sizes
        return {
            "heads": heads, "group": heads // self.key.shape[1], "q_len": queries, "k_len": keys, "scale": self.scale,
            "cap": self.score.cap if isinstance(self.score, SoftcapScore) else 1.0,
            "threshold": min(round(self.dropout * 2**32), 2**32 - 1) - 2**31, "keep": 1 / (1 - self.dropout),
        }  # fmt: skip

    def form(self) -> dict[str, Any]:
        """The arguments that kernels are compiled for."""
        wide, across = self.query.shape[3], self.value.shape[3]
        coarse = self.query.dtype != torch.float32
        return {
            "FORM": self.prepared.form, "BIAS": self.prepared.bias_form, "CAP": isinstance(self.score, SoftcapScore),
            "DROPS": self.seed is not None, "HIDES": self.seen is not None, "D": wide, "WIDTH": across,
            "BLOCK_D": block_sizes.padded(wide), "BLOCK_V": block_sizes.padded(across),
            "APPROXIMATE": coarse and not block_sizes.INTERPRETED,
            "PRECISION": block_sizes.precision(self.query.dtype),
        }  # fmt: skip

    @property
    def unused(self) -> Tensor:
        """A tensor to pass where a kernel does not read the argument."""
        return self.prepared.tables[0]

    def ordered(self, lists: BlockLists) -> dict[str, Any]:
        """The arguments that say which blocks come first."""
        return {
            "ORDER": self.unused if lists.order is None else lists.order,
            "ORDERED": lists.order is not None,
        }

    def optional(self) -> dict[str, Tensor]:
        """The seed, if there is one."""
        return {} if self.seed is None else {"SEED": self.seed}

    def key_of(self, name: str, *rows: Tensor) -> tuple[Any, ...]:
        """What a kernel's code and numbers depend on, besides the mask and the sizes of the request."""
        cap = self.score.cap if isinstance(self.score, SoftcapScore) else None
        sink = None if self.sink is None else self.sink.dtype
        layout = [(part.dtype, part.shape[1], part.shape[3], part.stride()) for part in rows]
        return (name, self.scale, cap, self.dropout, self.seed is None, sink, *layout)

    @cached_property
    def seen(self) -> Tensor | None:
        """Which keys some query sees; None if every key is seen."""
        return self.prepared.seen(self.key.shape[1])

    def tables(self, lists: BlockLists) -> dict[str, Any]:
        """The arguments that say which keys each query sees."""
        seen, prepared = self.seen, self.prepared
        strides = (
            (0, 0)
            if seen is None
            else tuple(0 if seen.shape[axis] == 1 else seen.stride(axis) for axis in (0, 1))
        )
        unused = prepared.tables[0]
        return {
            "SEED": unused if self.seed is None else self.seed, "SEEN": unused if seen is None else seen,
            "LIST": lists.index if lists.index.numel() else unused,
            "COUNTS": lists.counts if lists.counts.numel() else unused,
            "TABLES": prepared.tables, "TABLE_STRIDES": prepared.strides, "NUMBERS": prepared.numbers,
            "SEEN_STRIDES": strides, "LIST_STRIDES": lists.strides,
        }  # fmt: skip


def laid_out(rows: Tensor) -> Tensor:
    """Rows whose entries are contiguous."""
    return rows if rows.stride(3) == 1 or rows.shape[3] == 1 else rows.contiguous()


def strides(rows: Tensor) -> tuple[int, ...]:
    """The strides of batch entries, heads and rows."""
    return rows.stride()[:3]


def copied_in_bulk(*all_rows: Tensor) -> bool:
    """Whether the GPU's copy engine can read rows: a padded width, and addresses at multiples of 16 bytes."""
    for rows in all_rows:
        step, width = 16 // rows.element_size(), rows.shape[3]
        if width != block_sizes.padded(width) or rows.data_ptr() % 16:
            return False
        for axis, stride in enumerate(strides(rows)):
            if rows.shape[axis] > 1 and (stride == 0 or stride % step):
                return False
    return True


def described(rows: Tensor, block: int) -> TensorDescriptor:
    """A descriptor for the copy engine: a tensor and the size of the blocks of rows to read."""
    width = rows.shape[3]
    # The stride of an axis of one is arbitrary, but must be a multiple of 16 bytes.
    steps = [stride if size > 1 else width for size, stride in zip(rows.shape, strides(rows), strict=False)]
    return TensorDescriptor(rows, list(rows.shape), [*steps, 1], [1, 1, block, width])


def cut(shape: block_sizes.BlockSizes) -> dict[str, int]:
    """The arguments that say how a kernel cuts its work."""
    return {
        "BLOCK_Q": shape.block_q, "BLOCK_K": shape.block_k, "num_warps": shape.warps, "num_stages": shape.stages
    }  # fmt: skip


def _new(rows: Tensor) -> Tensor:
    """An uninitialised contiguous tensor for a gradient, whatever the strides of `rows`."""
    return torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)


def run_forward(work: KernelWork) -> tuple[Tensor, Tensor]:
    """The output (b,h,q,v) and the log-sum-exp (b,h,q) without the sink, in float32."""
    query, key, value = (laid_out(rows) for rows in (work.query, work.key, work.value))
    batch, heads, queries, _ = work.prepared.sizes
    output = torch.empty(*query.shape[:3], value.shape[3], dtype=query.dtype, device=query.device)
    logsumexp = torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)
    shape = block_sizes.forward_shape(query.dtype, work.width)

    def arguments() -> dict[str, Any]:
        lists = work.prepared.lists(shape.block_q, shape.block_k)
        bulk = work.seen is None and copied_in_bulk(key, value)
        walked = [described(rows, shape.block_k) if bulk else rows for rows in (key, value)]
        return {
            "Q": query, "K": walked[0], "V": walked[1], "OUT": output, "LSE": logsumexp,
            "SINK": work.unused if work.sink is None else work.sink, "Q_STRIDES": strides(query),
            "K_STRIDES": strides(key), "V_STRIDES": strides(value), "OUT_STRIDES": strides(output), "BULK": bulk,
            "SINKS": work.sink is not None, **work.tables(lists), **work.ordered(lists), **work.numbers(),
            **work.form(), **cut(shape),
        }  # fmt: skip

    tensors = {"Q": query, "K": key, "V": value, "OUT": output, "LSE": logsumexp, **work.optional()}
    if work.sink is not None:
        tensors["SINK"] = work.sink
    programs = -(-queries // shape.block_q) * batch * heads
    launch(
        forward,
        programs,
        work.prepared.launched,
        work.key_of("forward", query, key, value),
        tensors,
        arguments,
    )
    return output, logsumexp


@dataclass
class Backward:
    """One backward pass."""

    work: KernelWork
    grad: Tensor
    output: Tensor
    logsumexp: Tensor
    grad_logsumexp: Tensor | None

    def __post_init__(self) -> None:
        work = self.work
        self.grad = laid_out(self.grad)
        self.query, self.key, self.value = (laid_out(rows) for rows in (work.query, work.key, work.value))
        batch, heads, queries, _ = work.prepared.sizes
        # `total` is the logarithm of the normaliser of the weights, `share` the gradient of the log-sum-exp, which is
        # subtracted from a row's Σ out · gradient.
        self.total, self.share = self.logsumexp, None
        empty = self.logsumexp == -torch.inf
        if work.sink is not None:
            self.with_sink = torch.logaddexp(self.logsumexp, work.sink.float().view(1, -1, 1))
            self.with_sink = self.with_sink.masked_fill(empty, -torch.inf)
            self.inner: Tensor | None = None  # Σ out · gradient of each row, where `delta` is not that
            if self.grad_logsumexp is None:
                self.total = self.with_sink
            else:
                # The gradient of the log-sum-exp is distributed by weights without the sink. Those with it are smaller
                # by a factor for each row, by which the gradient of the output is multiplied. Multiplying the share
                # by its inverse instead would overflow where the sink lies far above the scores.
                self.inner = (self.output.float() * self.grad.float()).sum(-1)
                fade = torch.exp(self.logsumexp - self.with_sink).masked_fill(empty, 0)
                self.grad = (self.grad * fade[..., None]).to(self.grad.dtype)
        if self.grad_logsumexp is not None:
            self.share = self.grad_logsumexp.masked_fill(empty, 0).contiguous()
        self.padded_rows = -(-queries // 128) * 128  # whole blocks of every size
        self.row_stats = torch.empty(2, batch * heads, self.padded_rows, device=self.query.device)
        self._compute_row_stats()
        self.delta = self.row_stats[1].view(batch, heads, self.padded_rows)[..., :queries]
        self.tensors = {
            "Q": self.query, "K": self.key, "V": self.value, "GRAD": self.grad, "LSE": self.row_stats[0],
            "DELTA": self.row_stats[1], **work.optional(),
        }  # fmt: skip
        mask = work.prepared.mask
        self.hides_rows = mask is not None and hidden_queries(mask, queries, self.query.device) is not None

    def _compute_row_stats(self) -> None:
        """Fill `row_stats`, see the kernel."""
        batch, heads, queries, _ = self.work.prepared.sizes
        width, block = self.value.shape[3], 16 if block_sizes.INTERPRETED else 64
        tensors = {
            "OUT": self.output,
            "GRAD": self.grad,
            "LSE": self.total.contiguous(),
            "ROW_STATS": self.row_stats,
        }
        if self.share is not None:
            tensors["SHARE"] = self.share

        def arguments() -> dict[str, Any]:
            return {
                "SHARE": self.work.unused, **tensors, "OUT_STRIDES": strides(self.output),
                "GRAD_STRIDES": strides(self.grad), "heads": heads, "q_len": queries, "padded_rows": self.padded_rows,
                "SHARES": self.share is not None, "WIDTH": width, "BLOCK_V": block_sizes.padded(width),
                "BLOCK_Q": block,
            }  # fmt: skip

        key = (*self.work.key_of("row_stats", self.output, self.grad), self.share is None)
        launch(
            compute_row_stats,
            self.padded_rows // block * batch * heads,
            self.work.prepared.launched,
            key,
            tensors,
            arguments,
        )

    def common(self, lists: BlockLists, shape: block_sizes.BlockSizes) -> dict[str, Any]:
        """What all kernels take."""
        return {
            **self.tensors, "padded_rows": self.padded_rows, "Q_STRIDES": strides(self.query),
            "K_STRIDES": strides(self.key), "V_STRIDES": strides(self.value),
            "GRAD_STRIDES": strides(self.grad), **self.work.tables(lists),
            **self.work.numbers(), **self.work.form(), "HIDES_ROWS": self.hides_rows, **cut(shape),
        }  # fmt: skip

    def walked(self, names: tuple[str, str], block: int) -> dict[str, Any]:
        """The arguments for rows read block by block: descriptors where the copy engine can read them."""
        rows = {"Q": self.query, "K": self.key, "V": self.value, "GRAD": self.grad}
        chosen = [rows[name] for name in names]
        if self.work.seen is not None or self.hides_rows or not copied_in_bulk(*chosen):
            return {"BULK": False}
        return {
            "BULK": True,
            **{name: described(part, block) for name, part in zip(names, chosen, strict=True)},
        }

    def _key(self, name: str) -> tuple[Any, ...]:
        return self.work.key_of(name, self.query, self.key, self.value, self.grad)

    def sink(self) -> Tensor:
        """The gradient of the sink: −Σ of its weight times Σ out · gradient of each row."""
        assert self.work.sink is not None
        sink = self.work.sink.float().view(1, -1, 1)
        share = torch.exp(sink - self.with_sink).masked_fill(self.logsumexp == -torch.inf, 1)
        return -(share * (self.delta if self.inner is None else self.inner)).sum((0, 2))

    def keys(self) -> tuple[Tensor, Tensor]:
        """Gradients of keys and values."""
        shape = block_sizes.keys_shape(self.query.dtype, self.work.width)
        grad_key, grad_value = (_new(rows) for rows in (self.key, self.value))

        def arguments() -> dict[str, Any]:
            lists = self.work.prepared.lists(shape.block_q, shape.block_k, by_key=True)
            walked = self.walked(("Q", "GRAD"), shape.block_q)
            if walked["BULK"]:
                row_stats = (
                    TensorDescriptor.from_tensor(part, [1, shape.block_q]) for part in self.row_stats
                )
                walked.update(zip(("LSE", "DELTA"), row_stats, strict=True))
            return {
                **self.common(lists, shape), **walked, **self.work.ordered(lists), "GRAD_K": grad_key,
                "GRAD_V": grad_value, "GRAD_K_STRIDES": strides(grad_key), "GRAD_V_STRIDES": strides(grad_value),
                "GROUPED": self.key.shape[1] != self.query.shape[1], "BY_HEAD": lists.strides[1] != 0,
            }  # fmt: skip

        tensors = {**self.tensors, "GRAD_K": grad_key, "GRAD_V": grad_value}
        programs = -(-self.key.shape[2] // shape.block_k) * self.key.shape[0] * self.key.shape[1]
        launch(of_keys, programs, self.work.prepared.launched, self._key("keys"), tensors, arguments)
        return grad_key, grad_value

    def queries(self, centers: Tensor | None, dense: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Gradients of queries and of a Gaussian's centres; those of a dense bias are added to `dense`."""
        shape = block_sizes.queries_shape(self.query.dtype, self.work.width)
        grad_query = _new(self.query)
        pull = None if centers is None else torch.empty_like(self.logsumexp)
        spread = (0, 0, 0, 0)
        if dense is not None:
            spread = tuple(0 if dense.shape[axis] == 1 else dense.stride(axis) for axis in range(4))  # type: ignore[assignment]
        others = {"CENTERS": centers, "GRAD_CENTERS": pull, "GRAD_BIAS": dense}
        tensors = {**self.tensors, "GRAD_Q": grad_query, **{k: v for k, v in others.items() if v is not None}}

        def arguments() -> dict[str, Any]:
            lists = self.work.prepared.lists(shape.block_q, shape.block_k)
            return {
                **dict.fromkeys(others, self.work.unused), **self.common(lists, shape), **tensors,
                **self.walked(("K", "V"), shape.block_k), **self.work.ordered(lists), "BIAS_STRIDES": spread,
                "GRAD_Q_STRIDES": strides(grad_query), "CENTERED": centers is not None, "DENSE": dense is not None,
            }  # fmt: skip

        batch, heads, queries, _ = self.work.prepared.sizes
        key = (*self._key("queries"), centers is None, None if dense is None else spread)
        programs = -(-queries // shape.block_q) * batch * heads
        launch(of_queries, programs, self.work.prepared.launched, key, tensors, arguments)
        return grad_query, pull

    def distances(self) -> Tensor:
        """The gradient of a bias for each distance from 1 − q to k − 1, (h, q + k − 1)."""
        shape = block_sizes.distances_shape(self.query.dtype, self.work.width)
        batch, heads, queries, keys = self.work.prepared.sizes
        size, before = shape.block_k, -(-queries // shape.block_q)
        diagonals = before + -(-keys // size) - 1
        ahead, behind = (torch.empty(heads, diagonals, size, device=self.query.device) for _ in range(2))
        common = self.common(self.work.prepared.lists(shape.block_q, shape.block_k), shape)
        of_distances[(diagonals * heads,)](AHEAD=ahead, BEHIND=behind, batches=batch, **common)
        # The first entry of diagonal 0 is the distance (1 − before)·size; what wraps around lies one block earlier.
        found = torch.zeros(heads, (diagonals + 1) * size, device=self.query.device)
        found[:, size:] += ahead.flatten(1)
        found[:, :-size] += behind.flatten(1)
        start = before * size - (queries - 1)
        return found[:, start : start + queries + keys - 1]
