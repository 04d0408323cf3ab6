"""One call of the kernel: what is hidden is blanked, the mask becomes blocks and tables, the rows are laid out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.biases import Bias
from regard.differentiate import recording
from regard.errors import Unsupported
from regard.grid import Sizes
from regard.implementations.flex.kernel import BLOCK, attention, fixed, kernel_for
from regard.implementations.flex.lowering import Lowering, data
from regard.masks import FULL, PARTIAL, Mask
from regard.masks.algebra import And, Or, cut
from regard.masks.given import Documents, Lengths, Padding
from regard.masks.hidden import visible_keys
from regard.value import rebuild

_STEP = 16  # the kernels want rows whose width is a multiple of this

# Inside a function that the user compiles, the compiler sees these as single nodes.
_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "flex(Tensor query, Tensor key, Tensor value, Tensor[] tensors, str mask, str? bias, float scale, float? cap)"
    " -> Tensor"
)
_LIBRARY.define("flex_seen(Tensor[] tensors, str mask, SymInt[] sizes, Device device) -> Tensor")


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Bias | None, scale: float, cap: float | None
) -> Tensor:
    """softmax(score + bias) v over what the mask shows, (b,h,q,v), for a dot product that is capped or not."""
    if torch.compiler.is_compiling() and query.device.type == "cpu":
        # torch's compiler for the CPU gets FlexAttention wrong when it also compiles what the tables are made by.
        tensors = [*mask.tensors, *(() if bias is None else bias.tensors)]
        spec = None if bias is None else bias.spec
        output: Tensor = torch.ops.regard.flex.default(
            query, key, value, tensors, mask.spec, spec, scale, cap
        )
        return output
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    device, width = query.device, value.shape[3]
    key, value = _without_hidden(key, value, mask, sizes)
    hidden = _hidden_queries(mask, sizes[2], device)
    if hidden is not None and query.requires_grad | key.requires_grad | value.requires_grad:
        # The gradient of a key adds up 0 · query over the queries that do not see it.
        query = query.masked_fill(hidden[:, None, :, None], 0)
    rows = (_laid_out(query), _laid_out(key), _laid_out(value))
    lowering = Lowering(sizes, device)
    lowering.number(scale if cap is None else scale / cap)
    lowering.number(1.0 if cap is None else cap)
    form = (lowering.mask(mask), None if bias is None else lowering.bias(bias), cap is not None)
    blocks = _blocks(mask, sizes, device)
    strides = data(lowering.strides, torch.int64, device)
    numbers = data(lowering.numbers, torch.float32, device)
    call = attention if torch.compiler.is_compiling() else _compiled
    output = call(rows, blocks, tuple(lowering.tables), strides, numbers, *form)
    return output if output.shape[3] == width else output[..., :width]


def _compiled(rows: tuple[Tensor, ...], blocks: tuple[Tensor, ...], *rest: Any) -> Tensor:
    """`attention` by the kernel for requests of this form, or a refusal where torch would not fuse it."""
    needed = [torch.is_grad_enabled() and tensor.requires_grad for tensor in rows]
    kernel = kernel_for(*rest[3:], *needed, *fixed(rows, blocks))
    try:
        with torch.set_grad_enabled(any(needed)):
            return kernel(rows, blocks, *rest)
    except torch._dynamo.exc.FailOnRecompileLimitHit as problem:
        raise Unsupported(
            "impl='flex': torch has compiled too many variants of FlexAttention and would now run it unfused, in "
            "quadratic memory. Call torch.compiler.reset(), or use impl='tiled'."
        ) from problem
    except torch._dynamo.exc.TorchDynamoException as problem:
        raise Unsupported(
            "impl='flex': torch could not compile FlexAttention for this request; the error above says why. "
            "impl='auto' runs every valid request."
        ) from problem


def _without_hidden(key: Tensor, value: Tensor, mask: Mask, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """Keys and values that nobody sees become zeros: the kernel multiplies what stands there by zero."""
    if torch.compiler.is_compiling():
        seen = torch.ops.regard.flex_seen.default(list(mask.tensors), mask.spec, sizes, key.device)
    else:
        seen = visible_keys(mask, sizes, key.device)
    if seen is None:
        return key, value
    if seen.shape[1] > 1:
        seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
    hidden = ~seen[..., None]
    return key.masked_fill(hidden, 0), value.masked_fill(hidden, 0)


def _hidden_queries(mask: Mask, queries: int, device: torch.device) -> Tensor | None:
    """True for the queries that a mask declares to be padding, (b|1,q); None where it does not speak of that."""
    if isinstance(mask, Lengths) and mask.query_lengths is not None:
        return torch.arange(queries, device=device) >= mask.query_lengths[:, None]
    if isinstance(mask, Padding) and mask.query_keep is not None:
        return ~mask.query_keep
    if isinstance(mask, Documents):
        return mask.query_ids < 0
    if isinstance(mask, (And, Or)):
        left, right = (
            _hidden_queries(mask.left, queries, device),
            _hidden_queries(mask.right, queries, device),
        )
        if left is not None and right is not None:
            return left | right if isinstance(mask, And) else left & right
        if isinstance(mask, And):
            return right if left is None else left
    return None


def _laid_out(rows: Tensor) -> Tensor:
    """Rows of a width and in a layout that the kernels read as they should."""
    rows = pad(rows, (0, -rows.shape[3] % _STEP))
    if rows.device.type != "cpu" and rows.stride(3) == 1 and 0 not in rows.stride():
        return rows
    return rows.contiguous()


def _blocks(mask: Mask, sizes: Sizes, device: torch.device) -> tuple[Tensor, ...]:
    """Counts (b,h|1,n) and indices (b,h|1,n,m) of the partial and the full blocks of each row of blocks; for the
    backward pass also of each column.
    """
    grades = mask.grades(cut(sizes, BLOCK, BLOCK, device))
    # torch compiles anew for an axis of one: a second block that is empty and a batch written out keep that away.
    grades = pad(grades, (0, max(0, 2 - grades.shape[3]), 0, max(0, 2 - grades.shape[2])))
    grades = grades.expand(sizes[0], *grades.shape[1:])
    blocks = (*_ordered(grades == PARTIAL), *_ordered(grades == FULL))
    return (
        blocks
        if device.type == "cpu"
        else (*blocks, *_ordered(grades.mT == PARTIAL), *_ordered(grades.mT == FULL))
    )


def _ordered(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of each row are chosen, and their columns, the chosen ones first."""
    columns = chosen.to(torch.int8).contiguous().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), columns.to(torch.int32)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, tensors: list[Tensor], mask: str, bias: str | None, scale: float,
    cap: float | None,
) -> Tensor:  # fmt: skip
    remaining = iter(tensors)
    found = rebuild(mask, remaining), None if bias is None else rebuild(bias, remaining)
    with recording(), torch.no_grad():  # as outside of an operator, so that both share what was compiled
        return attend(query, key, value, *found, scale, cap).contiguous()  # type: ignore[arg-type]


def _flex_shape(
    query: Tensor, key: Tensor, value: Tensor, tensors: list[Tensor], mask: str, bias: str | None, scale: float,
    cap: float | None,
) -> Tensor:  # fmt: skip
    return query.new_empty(*query.shape[:3], value.shape[3])


def _seen(tensors: list[Tensor], mask: str, sizes: list[int], device: torch.device) -> Tensor:
    batch, heads, queries, keys = sizes
    seen = visible_keys(rebuild(mask, tuple(tensors)), (batch, heads, queries, keys), device)  # type: ignore[arg-type]
    if seen is None:
        return torch.ones(batch, heads, keys, dtype=torch.bool, device=device)
    return seen.expand(batch, heads, keys).contiguous()


def _seen_shape(tensors: list[Tensor], mask: str, sizes: list[int], device: torch.device) -> Tensor:
    return torch.empty(sizes[0], sizes[1], sizes[3], dtype=torch.bool, device=device)


_LIBRARY.impl("flex", _flex, "CompositeExplicitAutograd")
_LIBRARY.impl("flex_seen", _seen, "CompositeExplicitAutograd")
torch.library.register_fake("regard::flex", _flex_shape, lib=_LIBRARY)
torch.library.register_fake("regard::flex_seen", _seen_shape, lib=_LIBRARY)
