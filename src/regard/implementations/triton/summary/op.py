"""`summarize` by kernels: which requests they run, their block sizes, and the operator that runs them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from regard.formula.request import Request
from regard.implementations.lowering import unknown_part
from regard.implementations.packing import pack, unpack_values
from regard.implementations.triton.launch.block_sizes import SMALL, padded, precision
from regard.implementations.triton.launch.blocks import prepare
from regard.implementations.triton.launch.kernel_work import copied_in_bulk, described
from regard.implementations.triton.launch.launching import launch
from regard.implementations.triton.summary.kernels import along_columns, along_rows
from regard.implementations.triton.summary.notes import note_keys
from regard.implementations.triton.summary.order import order, search
from regard.normalizers import Softmax
from regard.scores.dot import DotScore, SoftcapScore

SummaryTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # entropy, received, top weights, top keys, log-sum-exp

_MOST_TOP = 32
_STRETCH = 64 if SMALL else 8192  # queries of a launch along the columns, which flags have room for
_CHUNK = 32 if SMALL else 2048  # queries of which a program collects the flagged ones at a time
NOTING = {"num_warps": 4, "num_stages": 1, "maxnreg": 168}  # so that three programs fit side by side
SHARES = 2  # programs among which the queries of a launch are divided when keys are noted


def runs(request: Request, top: int) -> bool:
    """Whether the kernels can summarise this request, whose score is one of pairs already."""
    batch, heads, _, _ = request.sizes
    return (
        top <= _MOST_TOP
        and request.scale != 0
        and type(request.normalizer) is Softmax
        and type(request.score) in (DotScore, SoftcapScore)
        and request.query.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and request.query.shape[3] <= 256
        and batch * heads < 1 << 16
        and (request.mask is None or unknown_part(request.mask) is None)
        and (request.bias is None or unknown_part(request.bias) is None)
    )


def run(request: Request, top: int) -> SummaryTensors:
    """The parts of a `Summary` of a request that `runs` accepted."""
    tensors, spec = pack(request)
    with torch.cuda.device_of(request.query):
        summary: SummaryTensors = torch.ops.regard.summary.default(
            request.query, request.key, request.sink, tensors, spec, request.scale, top
        )
    return summary


class SummaryBlockSizes(NamedTuple):
    """The sizes of a pass's blocks, and what its compiler is told."""

    block_q: int
    block_k: int
    warps: int
    stages: int
    registers: int | None  # the most a thread may have, so that two programs fit side by side

    def options(self) -> dict[str, int]:
        """What the compiler is told."""
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"num_warps": self.warps, "num_stages": self.stages, **limit}


def rows_shape(d: int, dtype: torch.dtype) -> SummaryBlockSizes:
    """For the walk along the rows."""
    if SMALL:
        return SummaryBlockSizes(32, 64, 1, 1, None)
    if dtype == torch.float32:
        return SummaryBlockSizes(64, 64, 4, 2, None) if d <= 128 else SummaryBlockSizes(64, 32, 4, 2, None)
    return SummaryBlockSizes(128, 128, 8, 2, 128) if d <= 128 else SummaryBlockSizes(128, 64, 8, 2, None)


def columns_shape(d: int, dtype: torch.dtype) -> SummaryBlockSizes:
    """For the walk along the columns."""
    if SMALL:
        return SummaryBlockSizes(32, 64, 1, 1, None)
    if dtype == torch.float32:
        return SummaryBlockSizes(64, 64, 4, 2, None) if d <= 128 else SummaryBlockSizes(64, 32, 4, 1, None)
    return SummaryBlockSizes(64, 128, 4, 2, 168) if d <= 128 else SummaryBlockSizes(64, 64, 4, 2, None)


def _run(
    query: Tensor, key: Tensor, sink: Tensor | None, tensors: list[Tensor], spec: str, scale: float, top: int
) -> SummaryTensors:
    summary = entropy, received, top_weights, top_keys, logsumexp = _shapes(query, key, sink, tensors, spec, scale, top)
    (batch, heads, queries, d), (_, groups, keys, _) = query.shape, key.shape
    if 0 in (batch, heads, queries, keys):
        for tensor, number in zip(summary, (0, 0, 0, -1, -torch.inf), strict=True):
            tensor.fill_(number)
        return summary
    if SMALL:  # which cannot multiply bfloat16
        query, key = query.float(), key.float()
    score, mask, bias, _ = unpack_values(spec, tensors)
    cap = score.cap if isinstance(score, SoftcapScore) else 0.0
    if scale < 0 and bias is None and not cap:  # plain products are compared before they are scaled
        query, scale = -query, -scale
    query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key))
    prepared = prepare(mask, bias, (batch, heads, queries, keys), query.device)
    tables = (prepared.tables, prepared.strides, prepared.numbers, query.stride()[:3], key.stride()[:3])
    lengths = (heads, heads // groups, queries, keys)
    form: dict[str, Any] = {
        "FORM": prepared.form, "BIAS": prepared.bias_form, "CAP": cap != 0, "D": d, "BLOCK_D": padded(d),
        "PRECISION": precision(query.dtype),
    }
    lanes = max(32, triton.next_power_of_2(4 * top))  # twice as many would hardly need fewer candidates
    room = {"ROOM": lanes}
    peak, share, bar = (torch.empty_like(entropy) for _ in range(3))
    count = torch.empty_like(entropy, dtype=torch.int32)
    candidates = count.new_empty(batch * heads * queries, lanes, dtype=torch.int64)

    cut = rows_shape(d, query.dtype)
    by_row, blocks = (prepared.lists(cut.block_q, cut.block_k), {"BLOCK_Q": cut.block_q, "BLOCK_K": cut.block_k})
    bulk = copied_in_bulk(key)
    launch(
        along_rows, (triton.cdiv(queries, cut.block_q), batch * heads),
        query, described(key, cut.block_k) if bulk else key, logsumexp, entropy, peak, share, bar, count, sink,
        by_row.index, by_row.counts, *tables, by_row.strides, *lengths, top, scale, cap,
        LANES=min(lanes, cut.block_k), BULK=bulk, **form, **blocks, **cut.options(),
    )
    thin = columns_shape(d, query.dtype)
    by_column = prepared.lists(thin.block_q, thin.block_k, by_key=True)
    programs, q_blocks = triton.cdiv(keys, thin.block_k), triton.cdiv(queries, thin.block_q)
    stretch = min(_STRETCH // thin.block_q, triton.next_power_of_2(q_blocks))
    chunk = min(_CHUNK // thin.block_q, stretch)
    flags = count.new_empty(batch * heads * programs * stretch * thin.block_q, dtype=torch.int8)
    lines = flags.new_empty(batch * heads * programs * SHARES * chunk * thin.block_q, dtype=torch.int16)
    bulk = copied_in_bulk(query)
    walked = described(query, thin.block_q) if bulk else query
    sizes = {"BLOCK_Q": thin.block_q, "BLOCK_K": thin.block_k, "STRETCH": stretch}
    listed = (by_column.edges, by_column.index, by_column.counts)
    lists = (*listed, *tables, by_column.strides, *lengths, q_blocks)
    for first_step in range(0, q_blocks, stretch):
        launch(
            along_columns, (programs, batch * heads), key, walked, peak, share, bar, received, flags, *lists,
            first_step, scale, cap, BULK=bulk, **form, **sizes, **thin.options(),
        )
        if top:
            launch(
                note_keys, (programs, batch * heads, SHARES), query, key, peak, bar, count, candidates, flags, lines,
                *lists, first_step, scale, cap, CHUNK=chunk, PART=min(64, thin.block_q), **form, **room, **sizes,
                **NOTING,
            )
    received /= (logsumexp != -torch.inf).sum(2, keepdim=True).clamp(min=1)
    if top:
        room["TOP"] = max(8, triton.next_power_of_2(top))
        launch(
            order, (triton.cdiv(queries, 32), batch * heads), share, bar, count, candidates, top_weights, top_keys,
            queries, top, ROWS=32, **room, num_warps=4,
        )
        block = min(64, cut.block_q)
        launch(
            search, (triton.cdiv(queries, block), batch * heads),
            query, key, peak, share, bar, count, top_weights, top_keys, by_row.index, by_row.counts, *tables,
            by_row.strides, *lengths, top, scale, cap, PART=block, **form, **blocks, **room, num_warps=8, num_stages=1,
        )
    return summary


def _shapes(
    query: Tensor, key: Tensor, sink: Tensor | None, tensors: list[Tensor], spec: str, scale: float, top: int
) -> SummaryTensors:
    rows, (batch, heads) = query.shape[:3], query.shape[:2]
    new = query.new_empty
    return (
        new(rows, dtype=torch.float32), new(batch, heads, key.shape[2], dtype=torch.float32),
        new(*rows, top, dtype=torch.float32), new(*rows, top, dtype=torch.int64), new(rows, dtype=torch.float32),
    )


_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "summary(Tensor query, Tensor key, Tensor? sink, Tensor[] tensors, str spec, float scale, int top) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.impl("summary", _run, "CompositeExplicitAutograd")
torch.library.register_fake("regard::summary", _shapes, lib=_LIBRARY)
