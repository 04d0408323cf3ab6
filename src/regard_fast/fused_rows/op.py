"""The row-wise stages as one custom operator, a single node for autograd and `torch.compile`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.implementations.triton.launch import block_sizes
from regard.support.batched_gradients import take_one_by_one
from regard.support.differentiate import fresh_views, gradients
from regard_fast.fused_rows import plain
from regard_fast.fused_rows.layout import RowPiece, Stages, jobs, sizes
from regard_fast.fused_rows.short_attention import as_rows, triton_dtype
from regard_fast.fused_rows.weight_copies import copies

if TYPE_CHECKING:
    from regard_fast.fused_rows.tokens import EmbeddedTokens

_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_OPTIONS = (
    "bool out, bool feed, int maps, str activation, float[] rates, float[] eps, int salt, int heads, ScalarType dtype"
)
_LIBRARY.define(
    f"fused_rows(Tensor x, Tensor? mixed, Tensor? seed, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor, Tensor[])"
)
_LIBRARY.define(
    "fused_rows_backward(Tensor? d_last, Tensor[] d_maps, Tensor x, Tensor? mixed, Tensor? seed, Tensor middle, "
    f"Tensor last, Tensor[] weights, {_OPTIONS}) -> (Tensor, Tensor, Tensor)"
)


@dataclass
class Tuning:
    """Sizes of the kernels: rows of a block, width of a tile of weights, warps, loads in flight."""

    rows: int = 16
    tile: int = 128
    warps: int = 8
    stages: int = 3
    grad_tall: int = 64  # of a tile of a weight's gradient, and its width
    grad_width: int = 64
    grad_rows: int = 128
    grad_warps: int = 4
    grad_stages: int = 3

    def tile_of(self, dim: int, hidden: int = 0, wide: bool = False) -> int:
        """The width of a tile of weights, which divides both widths."""
        width = min((min(self.tile, 64) if wide else self.tile) if dim <= 128 else 32, dim)
        while hidden % width:
            width //= 2
        return width

    def stages_of(self, wide: bool) -> int:
        """Loads in flight: of weights without a copy in half precision, fewer fit on a multiprocessor."""
        return min(self.stages, 2) if wide else self.stages

    def warps_of(self, dim: int) -> int:
        """Rows of more than 128 numbers do not fit into the registers of four warps."""
        return self.warps if dim <= 128 else 8


TUNING = Tuning()


@dataclass(frozen=True)
class RowOptions:
    """The arguments of the operator after its tensors."""

    out: bool
    feed: bool
    maps: int
    activation: str
    rates: Sequence[float]  # dropout after "out", inside and after "feed"
    eps: Sequence[float]  # of the normalisations before "feed" and "maps"
    salt: int  # tells the layers apart that share a seed
    heads: int  # of each map's result
    dtype: torch.dtype  # of products

    def listed(self) -> tuple[Any, ...]:
        """In the order of the operator."""
        return (self.out, self.feed, self.maps, self.activation, list(self.rates), list(self.eps), self.salt,
                self.heads, self.dtype)

    def stages(self, x: Tensor, weights: Sequence[Tensor]) -> Stages:
        """The stages with their sizes."""
        hidden = weights[2 * self.out + 3].shape[0] if self.feed else 0
        return Stages(self.out, self.feed, self.maps, x.shape[2], hidden)


def run(
    x: Tensor, mixed: Tensor | None, seed: Tensor | None, weights: list[Tensor], options: RowOptions
) -> tuple[Tensor, list[Tensor]]:
    """The rows after the stages "out" and "feed" (x itself without them), and the results of the maps (b,h,n,·)."""
    last, _, ys = torch.ops.regard.fused_rows.default(x, mixed, seed, weights, *options.listed())
    return (last if options.out or options.feed else x), ys


_NO_TOKENS: dict[str, Any] = {"TABLE": 0, "SCALE": 1.0, "SITE": 0, "DROP_ROWS": None, "KEEP_ROWS": 1.0}


def _threshold(rate: float, seed: Tensor | None) -> dict[str, Any]:
    """What the kernels compare their hash with, and what they multiply by what is kept."""
    if not rate or seed is None:
        return {"drop": None, "keep": 1.0}
    return {"drop": round(rate * 2**32) - 2**31, "keep": 1 / (1 - rate)}


def _shared(
    stages: Stages, options: RowOptions, groups: list[tuple[Tensor, ...]], mixed: Tensor | None, seed: Tensor | None,
    tokens: EmbeddedTokens | None,
) -> dict[str, Any]:
    """The constants that both kernels take; `groups` are the weights as the kernels read them."""
    wide = any(weight.dim() == 2 and weight.element_size() > 2 for group in groups for weight in group)
    constants: dict[str, Any] = {
        "D": stages.dim, "F": stages.hidden, "COUNT": stages.maps, "HAS_OUT": stages.out, "HAS_FEED": stages.feed,
        "HEAD": stages.dim if mixed is None else mixed.shape[3], "ACT": options.activation,
        "DT": triton_dtype(options.dtype), "WIDE": triton_dtype(_wide(options.dtype)), "R": TUNING.rows,
        "TILE": TUNING.tile_of(stages.dim, stages.hidden, wide), "STAGES": TUNING.stages_of(wide),
    }
    for name, rate in zip(("OUT", "HIDDEN", "FEED"), options.rates, strict=True):
        threshold = _threshold(rate, seed)
        constants |= {f"DROP_{name}": threshold["drop"], f"KEEP_{name}": threshold["keep"]}
    constants |= _NO_TOKENS if tokens is None else tokens.constants(seed)
    if not block_sizes.INTERPRETED:
        constants["num_warps"] = TUNING.warps_of(stages.dim)
    return constants


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums of products."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _strides(tensor: Tensor | None) -> tuple[int, int, int]:
    return (0, 0, 0) if tensor is None else (tensor.stride(0), tensor.stride(1), tensor.stride(2))


def _filled(groups: tuple[tuple[Tensor, ...], ...], x: Tensor) -> list[tuple[Tensor, ...]]:
    """The weights by stage, with something in place of those that are missing.

    The kernels choose between the maps' weights, which therefore are copies or not together.
    """
    filled = [tuple(copies(weight) for weight in group) or (x,) for group in groups]
    maps = groups[-1]
    if len({weight.dtype for weight in filled[-1][: len(maps) // 2]}) > 1:
        filled[-1] = maps
    return filled


def _empty(x: Tensor) -> Tensor:
    return x.new_empty(0)


def _forward(
    x: Tensor, mixed: Tensor | None, seed: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    return rows_ahead(x, mixed, seed, weights, RowOptions(*given))


def rows_ahead(
    x: Tensor, mixed: Tensor | None, seed: Tensor | None, weights: list[Tensor], options: RowOptions,
    tokens: EmbeddedTokens | None = None,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What the operator returns. `tokens`: the rows are made from them, where a stack begins, and written to x."""
    from regard_fast.fused_rows.kernels import rows_forward

    stages = options.stages(x, weights)
    x, mixed = x.contiguous(), _last_contiguous(mixed)
    last, middle, ys = _forward_shapes(x, mixed, seed, weights, *options.listed())
    if tokens is not None:
        assert not (options.out or options.feed)
        last = x
    rows = x.shape[0] * x.shape[1]
    groups = _filled(stages.split(weights), x)
    rows_forward[(-(-rows // TUNING.rows),)](
        x, x if mixed is None else mixed, x if seed is None else seed, middle, last, tuple(ys) or (x,),
        *groups, (x,) if tokens is None else tokens.tensors(), options.salt, rows, x.shape[1], *_strides(mixed),
        *options.eps, WAVES=tokens is not None and tokens.waves,
        **_shared(stages, options, groups, mixed, seed, tokens),
    )
    return last, middle, ys


def _forward_shapes(
    x: Tensor, mixed: Tensor | None, seed: Tensor | None, weights: list[Tensor], *given: Any
) -> tuple[Tensor, Tensor, list[Tensor]]:
    options = RowOptions(*given)
    batch, length, dim = x.shape

    def like() -> Tensor:
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    last = like() if options.out or options.feed else _empty(x)
    middle = like() if options.out and options.feed else _empty(x)
    shape = (batch, length, options.heads, dim // options.heads)
    ys = [x.new_empty(shape, dtype=options.dtype).transpose(1, 2) for _ in range(options.maps)]
    return last, middle, ys


def behind(before: Sequence[RowPiece], kept: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    """Factors and sums from the columns on that lie behind those of some calls."""
    return kept[:, sum(piece.pitch for piece in before) :], sums[:, sum(piece.vectors for piece in before) :]


class Factors:
    """What the backward kernels of one call, or of several, keep for the gradients of weights.

    `made`: what they have kept already. `pooled`: an example has one row, and sums of its own.
    """

    def __init__(
        self, pieces: Sequence[RowPiece], x: Tensor, dtype: torch.dtype, made: tuple[Tensor, Tensor] | None = None,
        pooled: bool = False,
    ) -> None:
        self.pieces = tuple(pieces)
        self.rows = x.shape[0] if pooled else x.shape[0] * x.shape[1]
        self.blocks = self.rows if pooled else -(-self.rows // TUNING.rows)
        self.pitch, self.vectors = (sum(getattr(piece, name) for piece in pieces) for name in ("pitch", "vectors"))
        self.kept, self.sums = made or (
            x.new_empty((self.rows, self.pitch), dtype=dtype),
            x.new_empty((self.blocks, self.vectors), dtype=_wide(dtype)),
        )

    def of(self, number: int) -> tuple[Tensor, Tensor]:
        """Where one of the calls writes its factors and sums."""
        return behind(self.pieces[:number], self.kept, self.sums)

    def weight_gradients(
        self, into: Tensor, pull: Tensor | None = None, count: Tensor | None = None, head: Factors | None = None
    ) -> None:
        """The gradients of all weights, in the order of the calls and of `head`.

        They are multiplied by `pull`, and divided by `count` where it is more than 1.
        """
        from regard_fast.fused_rows.kernels import weight_gradients

        last = self if head is None else head
        groups = (self.pieces, () if head is None else head.pieces)
        listed, tall, width = jobs(groups, TUNING.grad_tall, TUNING.grad_width, into.device)
        launch = {} if block_sizes.INTERPRETED else {"num_warps": TUNING.grad_warps}
        weight_gradients[(len(listed),)](
            self.kept, self.sums, last.kept, last.sums, into if pull is None else pull,
            into if count is None else count, into, listed, self.rows, self.blocks, PITCH=self.pitch,
            VECTORS=self.vectors, HEAD_PITCH=0 if head is None else head.pitch,
            HEAD_VECTORS=0 if head is None else head.vectors, HAS_PULL=pull is not None, HAS_COUNT=count is not None,
            TALL=tall, WIDTH=width, BLOCK=TUNING.grad_rows, WIDE=triton_dtype(self.sums.dtype),
            STAGES=TUNING.grad_stages, **launch,
        )


def _backward(
    d_last: Tensor | None, d_maps: list[Tensor], x: Tensor, mixed: Tensor | None, seed: Tensor | None, middle: Tensor,
    last: Tensor, weights: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    options = RowOptions(*given)
    grads = _weight_shapes(x, weights, options)
    factors = Factors([options.stages(x, weights)], x, options.dtype)
    d_x, d_mixed = rows_back(d_last, d_maps, x, mixed, seed, middle, last, weights, options, factors, number=0)
    factors.weight_gradients(grads)
    return d_x, d_mixed, grads


def rows_back(
    d_last: Tensor | None, d_maps: list[Tensor], x: Tensor, mixed: Tensor | None, seed: Tensor | None, middle: Tensor,
    last: Tensor, weights: list[Tensor], options: RowOptions, factors: Factors, number: int,
    tokens: EmbeddedTokens | None = None,
) -> tuple[Tensor, Tensor]:
    """The gradients of the rows and of the mixed heads; `factors` gets what those of the weights are made from.

    Rows of `tokens` have no gradient: `factors` gets what that of their table is made from, as its last call.
    """
    from regard_fast.fused_rows.kernels import rows_backward

    stages = options.stages(x, weights)
    x, mixed = x.contiguous(), _last_contiguous(mixed)
    d_last = None if d_last is None else d_last.contiguous()
    d_maps = _alike(d_maps)
    d_x, d_mixed = _row_shapes(x, mixed) if tokens is None else (_empty(x), _empty(x))
    kept, sums = factors.of(number)
    of_table = kept if tokens is None else factors.of(len(factors.pieces) - 1)[0]
    before = middle if options.out and options.feed else x
    after = last if options.out or options.feed else x
    groups = _filled(stages.split(weights), x)
    rows_backward[(factors.blocks,)](
        x if d_last is None else d_last, tuple(d_maps) or (x,), x, x if mixed is None else mixed,
        x if seed is None else seed, before, after, d_x, d_mixed, kept, sums, *groups,
        x if tokens is None else tokens.tensors()[0], of_table, options.salt, factors.rows, x.shape[1],
        *_strides(mixed), *_strides(d_maps[0] if d_maps else None),
        *options.eps, PITCH=factors.pitch, VECTORS=factors.vectors, MAP_HEAD=x.shape[2] // options.heads,
        HAS_DX=d_last is not None, **_shared(stages, options, groups, mixed, seed, tokens),
    )
    return d_x, d_mixed


def _backward_shapes(
    d_last: Tensor | None, d_maps: list[Tensor], x: Tensor, mixed: Tensor | None, seed: Tensor | None, middle: Tensor,
    last: Tensor, weights: list[Tensor], *given: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return *_row_shapes(x, mixed), _weight_shapes(x, weights, RowOptions(*given))


def _row_shapes(x: Tensor, mixed: Tensor | None) -> tuple[Tensor, Tensor]:
    d_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    return d_x, _empty(x) if mixed is None else as_rows(mixed.shape, mixed)


def _weight_shapes(x: Tensor, weights: list[Tensor], options: RowOptions) -> Tensor:
    total = sum(sizes(options.stages(x, weights).shapes()))
    return x.new_empty(total, dtype=weights[0].dtype)


def _last_contiguous(tensor: Tensor | None) -> Tensor | None:
    return tensor if tensor is None or tensor.stride(3) == 1 else tensor.contiguous()


def _alike(tensors: list[Tensor]) -> list[Tensor]:
    """The same tensors with equal strides, the last of which is 1."""
    if not tensors or (tensors[0].stride(3) == 1 and len({tensor.stride() for tensor in tensors}) == 1):
        return tensors
    return [tensor.contiguous() for tensor in tensors]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, mixed, seed, weights, *ctx.given = inputs
    last, middle, ys = output
    ctx.shapes = [(map_rows.shape, map_rows.dtype) for map_rows in ys]
    ctx.save_for_backward(x, mixed, seed, middle, last, *weights)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, d_last: Tensor | None, d_middle: Tensor | None, d_maps: Any) -> tuple[Any, ...]:
    x, mixed, seed, middle, last, *weights = ctx.saved_tensors
    options = RowOptions(*ctx.given)
    map_gradients = list(d_maps) if d_maps is not None else [None] * options.maps
    if not (options.out or options.feed):
        d_last = None
    d_maps = [
        x.new_zeros(shape, dtype=dtype) if gradient is None else gradient
        for gradient, (shape, dtype) in zip(map_gradients, ctx.shapes, strict=True)
    ]
    none = [None] * len(ctx.given)
    if torch.is_grad_enabled():
        d_inputs = _recorded(x, mixed, seed, weights, options, d_last, d_maps)
        return d_inputs[0], d_inputs[1], None, d_inputs[2:], *none
    d_x, d_mixed, grads = torch.ops.regard.fused_rows_backward.default(
        d_last, d_maps, x, mixed, seed, middle, last, weights, *ctx.given
    )
    shapes = options.stages(x, weights).shapes()
    of_weights = [gradient.view(shape) for gradient, shape in zip(grads.split(sizes(shapes)), shapes, strict=True)]
    return d_x, None if mixed is None else d_mixed, None, of_weights, *none


def _recorded(
    x: Tensor, mixed: Tensor | None, seed: Tensor | None, weights: list[Tensor], options: RowOptions,
    d_last: Tensor | None, d_maps: list[Tensor],
) -> list[Tensor | None]:
    """The same gradients with an autograd graph, from the stages in plain torch."""
    views = fresh_views([x, mixed, *weights])
    x_view, heads, *trained = views
    assert x_view is not None
    outputs = plain.rows(
        x_view, heads, seed, [view for view in trained if view is not None], options.stages(x, weights),
        options.activation, options.rates, options.eps, options.salt, [options.heads] * options.maps,
    )
    grads = [*([d_last] if options.out or options.feed else []), *d_maps]
    return gradients(zip(outputs, grads, strict=True), views, again=True)


_LIBRARY.impl("fused_rows", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("fused_rows_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("regard::fused_rows", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("regard::fused_rows_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("regard::fused_rows", _differentiate, setup_context=_remember, lib=_LIBRARY)
take_one_by_one("fused_rows_backward", _LIBRARY)
