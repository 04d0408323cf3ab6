"""One call of the kernel, and the operators that represent it inside a function that the user compiles."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.biases import Bias
from regard.errors import Unsupported
from regard.implementations.flex.kernel import Data, Rows, attention, fixed, kernel_for, of_any_size
from regard.implementations.flex.prepare import data_of, prepare
from regard.implementations.lowering import Lowering, constant
from regard.masks import Mask
from regard.masks.visibility import hidden_queries, visible_keys
from regard.support.differentiate import record_for_autograd
from regard.values.grid import Sizes
from regard.values.value import rebuild

_STEP = 16  # the kernels need rows whose width is a multiple of this


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, bias: Bias | None, scale: float, cap: float | None
) -> Tensor:
    """softmax(score + bias) v over what the mask shows, (b,h,q,v), for a dot product that is capped or not."""
    if torch.compiler.is_compiling() and query.device.type == "cpu":
        # torch's CPU compiler miscompiles FlexAttention when it also compiles the code that makes the tables.
        tensors = [*mask.tensors, *(() if bias is None else bias.tensors)]
        spec = None if bias is None else bias.spec
        single: Tensor = torch.ops.regard.flex.default(query, key, value, tensors, mask.spec, spec, scale, cap)
        return single
    sizes = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    device, width = query.device, value.shape[3]
    prepared = prepare(mask, sizes, device)
    if cap is None:  # a row whose scores are −inf because of an infinite query must not count as empty
        query = query.masked_fill(query.isinf(), torch.nan)
    rows = _without_hidden(query, key, value, mask, prepared.seen)
    factors = (scale, 1.0) if cap is None else (scale / cap, cap)
    if bias is None:
        added, numbers = None, constant(factors, torch.float32, device)
        of_bias: Data = ((), numbers)
    else:
        lowering = Lowering(sizes, device, factors)
        added, of_bias = lowering.bias(bias), data_of(lowering)
        numbers = constant(tuple(lowering.numbers), torch.float32, device)
    call = attention if torch.compiler.is_compiling() else _compiled
    output = call(
        (_laid_out(rows[0]), _laid_out(rows[1]), _laid_out(rows[2])),
        prepared.blocks,
        prepared.data,
        of_bias,
        numbers,
        prepared.node,
        added,
        cap is not None,
    )
    return output if output.shape[3] == width else output[..., :width]


def _compiled(rows: Rows, blocks: tuple[Tensor, ...], *rest: Any) -> Tensor:
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


def _without_hidden(query: Tensor, key: Tensor, value: Tensor, mask: Mask, seen: Tensor | None) -> Rows:
    """Zeros in place of keys that no query sees and of padding queries: the kernels multiply them by zero."""
    hidden = hidden_queries(mask, query.shape[2], query.device)
    if hidden is not None and (query.requires_grad or key.requires_grad or value.requires_grad):
        query = query.masked_fill(hidden[:, None, :, None], 0)
    if seen is not None:
        if seen.shape[1] > 1:
            seen = seen.unflatten(1, (key.shape[1], -1)).any(2)
        unseen = ~seen[..., None]
        key, value = key.masked_fill(unseen, 0), value.masked_fill(unseen, 0)
    return query, key, value


def _laid_out(rows: Tensor) -> Tensor:
    """Rows padded to a width, and in a layout, that the kernels read correctly."""
    rows = pad(rows, (0, -rows.shape[3] % _STEP))
    if rows.device.type == "cpu" or rows.stride(3) != 1 or 0 in rows.stride():
        rows = rows.contiguous()
    return of_any_size(rows, 0, 2)


# Inside a function that the user compiles, these are single nodes for the compiler.
_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "flex(Tensor query, Tensor key, Tensor value, Tensor[] tensors, str mask, str? bias, float scale, float? cap)"
    " -> Tensor"
)
_LIBRARY.define("flex_seen(Tensor[] tensors, str mask, SymInt[] sizes, Device device) -> Tensor")


def _flex(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tensors: list[Tensor],
    mask: str,
    bias: str | None,
    scale: float,
    cap: float | None,
) -> Tensor:
    remaining = iter(tensors)
    values_of_pairs = rebuild(mask, remaining), None if bias is None else rebuild(bias, remaining)
    with record_for_autograd(), torch.no_grad():  # as outside of an operator, so that both share what was compiled
        return attend(query, key, value, *values_of_pairs, scale, cap).contiguous()  # type: ignore[arg-type]


def _flex_shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tensors: list[Tensor],
    mask: str,
    bias: str | None,
    scale: float,
    cap: float | None,
) -> Tensor:
    return query.new_empty(*query.shape[:3], value.shape[3])


def _seen(tensors: list[Tensor], mask: str, sizes: Sizes, device: torch.device) -> Tensor:
    batch, heads, _, keys = sizes
    visible = visible_keys(rebuild(mask, tuple(tensors)), tuple(sizes), device)  # type: ignore[arg-type]
    if visible is None:
        return torch.ones(batch, heads, keys, dtype=torch.bool, device=device)
    return visible.expand(batch, heads, keys).contiguous()


def _seen_shape(tensors: list[Tensor], mask: str, sizes: Sizes, device: torch.device) -> Tensor:
    return torch.empty(sizes[0], sizes[1], sizes[3], dtype=torch.bool, device=device)


_LIBRARY.impl("flex", _flex, "CompositeExplicitAutograd")
_LIBRARY.impl("flex_seen", _seen, "CompositeExplicitAutograd")
torch.library.register_fake("regard::flex", _flex_shape, lib=_LIBRARY)
torch.library.register_fake("regard::flex_seen", _seen_shape, lib=_LIBRARY)
