"""The compiled kernel: FlexAttention with a mask and scores made of table look-ups."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
import torch.fx.experimental._config as shape_config
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from regard.implementations.lowering import Node

BLOCK = 128
_LOWEST = -1e38  # kernels multiply scores by log₂e, after which a finite score must still be finite
_PARTS = (
    "kv_num_blocks",
    "kv_indices",
    "full_kv_num_blocks",
    "full_kv_indices",
    "q_num_blocks",
    "q_indices",
    "full_q_num_blocks",
    "full_q_indices",
)

Rows = tuple[Tensor, Tensor, Tensor]  # queries (b,h,q,d), keys (b,g,k,d), values (b,g,k,v)
Data = tuple[tuple[Tensor, ...], Tensor]  # tables of one axis, and strides
Pair = tuple[Tensor, Tensor, Tensor, Tensor]  # the indices of batch entry, head, query and key


def attention(
    rows: Rows,
    blocks: tuple[Tensor, ...],
    of_mask: Data,
    of_bias: Data,
    numbers: Tensor,
    mask: Node,
    bias: Node | None,
    capped: bool,
) -> Tensor:
    """What gets compiled: the output (b,h,q,v).

    Tensors are data. The other arguments (the nodes of mask and bias, whether scores are capped) determine the code.
    """
    query, key, value = rows

    def visible(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return _visible(mask, (batch, head, row, column), of_mask)

    def finished(score: Tensor, batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        score = score * numbers[0]
        if capped:
            score = torch.tanh(score) * numbers[1]
        if bias is not None:
            score = score + _bias(bias, (batch, head, row, column), of_bias, numbers)
        if score.device.type == "cpu":
            # The CPU kernel loses a NaN when it searches the largest score; +inf becomes NaN later and is kept.
            score = score.masked_fill(score.isnan(), torch.inf)
        return score

    tables: dict[str, Any] = dict(zip(_PARTS, (*blocks, None, None, None, None), strict=False))
    lengths = (query.shape[2], key.shape[2])
    block_mask = BlockMask(lengths, **tables, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=visible)
    grouped = True if query.shape[1] != key.shape[1] else False  # noqa: SIM210 (symbolic in a compiled region)
    options = None if query.device.type == "cpu" else _options(gathers(mask) or gathers(bias))
    return flex_attention(
        query, key, value, finished, block_mask, scale=1.0, enable_gqa=grouped, kernel_options=options
    )


def _options(gathering: bool) -> Any:
    """Build options of the GPU kernel."""
    # For few queries torch has a second kernel, with other limits; the first one runs everything.
    options: dict[str, Any] = {"FORCE_USE_FLEX_ATTENTION": True}
    if gathering:
        # Each stage of the pipeline would hold a block of entries in shared memory, which is too small for several.
        options["num_stages"] = 1
    return options


def gathers(node: Node | None) -> bool:
    """Whether a node looks up an entry for each pair, not only for each query or key."""
    if node is None or node[0] in ("span", "ends", "same", "slope", "gaussian"):
        return False
    return node[0] in ("dense", "distance") or any(gathers(operand) for operand in node[1:])


def _visible(node: Node, pair: Pair, data: Data) -> Tensor:
    """Whether the query sees the key."""
    kind = node[0]
    if kind == "and":
        return _visible(node[1], pair, data) & _visible(node[2], pair, data)
    if kind == "or":
        return _visible(node[1], pair, data) | _visible(node[2], pair, data)
    if kind == "not":
        return ~_visible(node[1], pair, data)
    if kind == "dense":
        return _entry(node[1], pair, (0, 1, 2, 3), data)
    if kind == "same":
        return _entry(node[1], pair, (0, 2), data) == _entry(node[2], pair, (0, 3), data)
    assert kind in ("span", "ends")
    axes = (0, 2) if kind == "span" else (0, 1, 2)
    return (pair[3] >= _entry(node[1], pair, axes, data)) & (pair[3] < _entry(node[2], pair, axes, data))


def _bias(node: Node, pair: Pair, data: Data, numbers: Tensor) -> Tensor:
    """What is added to the score."""
    kind = node[0]
    if kind == "sum":
        return _not_below(_bias(node[1], pair, data, numbers) + _bias(node[2], pair, data, numbers))
    if kind == "dense":
        return _not_below(_entry(node[1], pair, (0, 1, 2, 3), data).float())
    if kind == "gaussian":
        away = pair[3] - _entry(node[1], pair, (0, 1, 2), data)
        return (away * away * numbers[node[2]]).clamp(min=_LOWEST)
    away = pair[3] - pair[2]
    if kind == "slope":
        return -_entry(node[2], pair, (1,), data) * (away - data[1][node[1]]).abs()
    assert kind == "distance"
    return _entry(node[2], (pair[0], pair[1], pair[2], away + data[1][node[1]]), (1, 3), data)


def _not_below(bias: Tensor) -> Tensor:
    """A finite bias as a number that stays finite in base 2, and in a sum of two."""
    return torch.where(bias == -torch.inf, bias, bias.clamp(min=_LOWEST))


def _entry(place: Node, pair: Pair, axes: tuple[int, ...], data: Data) -> Tensor:
    """The entry of a flat table, which depends on these axes only."""
    tables, strides = data
    table, start = tables[place[0]], place[1]
    index = pair[axes[0]] * strides[start + axes[0]]
    for axis in axes[1:]:
        index = index + pair[axis] * strides[start + axis]
    if table.device.type == "cpu":
        # Plain indexing writes the size of the table into the code of the CPU kernel, where torch (2.13) can
        # mistake its name for that of another size. Our indices never leave their tables.
        entry: Tensor = torch.ops.aten._unsafe_masked_index(table, index >= 0, [index], 0)
        return entry
    return table[index]


class Kernel:
    """`attention`, compiled once for many lengths and batch sizes."""

    def __init__(self) -> None:
        # torch stores compiled variants with the code of a function and gives up after a few of them. A copy of the
        # code for each form of request gives every form its own limit.
        copy = FunctionType(attention.__code__.replace(), attention.__globals__, attention.__name__)
        self.compiled = torch.compile(copy, dynamic=False, fullgraph=True)
        self.is_new = True

    def __call__(self, *arguments: Any) -> Tensor:
        if not self.is_new:
            try:
                return self._call(arguments)
            except torch._dynamo.exc.TorchDynamoException:
                pass  # torch compiled again (after a reset, say) and one of its warnings counted as an error: see below
        with warnings.catch_warnings(action="ignore"):  # warnings of torch's compiler do not concern the user
            output = self._call(arguments)
        self.is_new = False
        return output

    def _call(self, arguments: tuple[Any, ...]) -> Tensor:
        # Do not let the compiler assume that sizes that happen to be equal always are.
        with shape_config.patch(use_duck_shape=False):  # type: ignore[attr-defined]
            output: Tensor = self.compiled(*arguments)
        return output


@lru_cache(maxsize=256)
def kernel_for(*form: Any) -> Kernel:
    """The kernel for requests of one form, which holds everything that torch would recompile for."""
    return Kernel()


def fixed(rows: Rows, blocks: tuple[Tensor, ...]) -> Iterator[Any]:
    """What a compiled kernel assumes about its tensors: everything but the sizes of batch and sequences."""
    query, key, _ = rows
    yield from (query.dtype, query.device, query.is_inference(), torch.get_num_threads(), blocks[0].shape[1])
    yield from (query.shape[0] == 1, query.shape[2] == 1, key.shape[2] == 1)
    yield query.device.type != "cpu" and query.shape[2] < BLOCK  # there torch recompiles for few queries
    for tensor in rows:
        yield from (tensor.shape[1], tensor.shape[3], tensor.is_contiguous())
        yield tensor.stride(1) < tensor.stride(2)


def of_any_size(tensor: Tensor, *axes: int) -> Tensor:
    """A view of a tensor whose size along `axes` is dynamic for the compiler.

    A view, because the mark is an attribute of the object and a caller's tensor must stay unmarked.
    """
    if torch.compiler.is_compiling():
        return tensor
    view = tensor.view(tensor.shape)
    for axis in axes:
        if view.shape[axis] > 1:
            torch._dynamo.maybe_mark_dynamic(view, axis)
    return view
