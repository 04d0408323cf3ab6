"""The calls whose kernels `bench.compile_kernels` compiles: attention, summaries, decoding, small models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch


def rows(*shape: int, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Queries, keys and values, and a gradient of the output; never written, so they take no memory."""
    made = [torch.empty(*shape, dtype=dtype) for _ in range(4)]
    return [*[one.requires_grad_() for one in made[:3]], made[3]]


def attend(shape: tuple[int, ...], dtype: torch.dtype = torch.bfloat16, groups: int = 0, **asked: Any) -> None:
    """Forward and backward of one request."""
    import regard

    q, k, v, grad = rows(*shape, dtype=dtype)
    if groups:
        k, v = rows(shape[0], groups, *shape[2:], dtype=dtype)[:2]
    given = [one for value in asked.values() for one in getattr(value, "tensors", (value,))]
    learned = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
    output = regard.attend(q, k, v, impl="triton", **asked)
    torch.autograd.grad(output, [q, k, v, *learned], grad, allow_unused=True)


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Name and call of everything that is compiled."""
    from regard import biases, masks, scores

    n, heads = 4096, 16
    ids = (torch.arange(n) // 500).expand(1, -1)
    window = masks.window(511, 0)
    asked: dict[str, dict[str, Any]] = {
        "full": {},
        "causal": {"mask": masks.causal()},
        "window": {"mask": window},
        "global": {"mask": window | masks.global_tokens(range(16))},
        "documents": {"mask": masks.causal() & masks.documents(ids)},
        "padding": {"mask": masks.lengths(torch.tensor([n - 300]))},
        "both lengths": {"mask": masks.lengths(torch.tensor([n - 300]), torch.tensor([n - 300]))},
        "alibi": {"mask": masks.causal(), "bias": biases.alibi(heads)},
        "prefix": {"mask": masks.causal() | masks.prefix(n // 4)},
        "softcap": {"mask": masks.causal(), "score": scores.softcap(30.0)},
    }
    for name, given in asked.items():
        for d in (128, 64):
            yield f"{name} d{d}", partial(attend, (1, heads, n, d), **given)
    for name in ("window", "global"):
        yield f"{name} float32", partial(attend, (1, heads, n, 64), torch.float32, **asked[name])
        yield f"{name} float16 d40", partial(attend, (1, heads, n, 40), torch.float16, **asked[name])
        yield f"{name} d256", partial(attend, (1, heads, n, 256), **asked[name])
    yield "shared heads", partial(attend, (1, heads, n, 128), groups=4, **asked["window"])
    yield "shared heads, documents", partial(attend, (1, heads, n, 128), groups=4, **asked["documents"])
    yield "dropout", partial(attend, (1, heads, n, 64), dropout=0.1, **asked["causal"])
    yield "sink", partial(attend, (1, heads, n, 64), sink=torch.empty(heads, requires_grad=True))
    table = torch.empty(heads, 63, requires_grad=True)
    yield "relative bias", partial(attend, (1, heads, n, 64), bias=biases.relative(table), **asked["causal"])
    for name in ("sigmoid", "entmax15", "sparsemax", "hard"):
        for d, dtype in (
            (64, torch.bfloat16),
            (128, torch.bfloat16),
            (256, torch.bfloat16),
            (64, torch.float32),
            (128, torch.float32),
            (40, torch.float16),
        ):
            call = partial(attend, (1, heads, n, d), dtype, normalize=name, **asked["causal"])
            yield f"{name} d{d} {str(dtype)[6:]}", call
        yield f"{name} documents", partial(attend, (1, heads, n, 64), normalize=name, **asked["documents"])
        raw = torch.ones(2, 3, 19, 19, dtype=torch.bool)
        yield f"{name} raw mask", partial(attend, (2, 3, 19, 5), torch.float32, normalize=name, mask=raw)
    yield from additive_cases(asked)
    yield from observing_cases(asked)
    yield from small_cases()


def additive_cases(asked: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Additive scores: one long sequence, many short ones."""
    from regard import scores

    for name, shape in (("long", (1, 1, 4096, 128)), ("many", (64, 1, 256, 256)), ("narrow", (2, 4, 257, 32))):
        weight = torch.empty(shape[3], requires_grad=True)
        yield f"additive {name}", partial(attend, shape, torch.float32, score=scores.additive(weight))
    weight = torch.empty(64, requires_grad=True)
    for name in ("window", "documents", "alibi"):
        given = {**asked[name], "score": scores.additive(weight)}
        yield f"additive {name}", partial(attend, (1, 16, 4096, 64), torch.float32, **given)

    for sizes in ((32, 1, 8, 128), (32, 8, 8, 128), (32, 1, 64, 128), (4, 16, 32, 256)):
        yield f"additive short {sizes}", partial(short_additive, *sizes)


def short_additive(batch: int, queries: int, keys: int, width: int) -> None:
    """Additive attention over few keys, one head."""
    import regard

    q, k, v = (torch.empty(batch, 1, n, width, dtype=torch.bfloat16, requires_grad=True) for n in (queries, keys, keys))
    weight = torch.empty(width, requires_grad=True)
    output = regard.attend(q, k, v, score=regard.scores.additive(weight), impl="triton")
    torch.autograd.grad(output, [q, k, v, weight], torch.empty_like(output))


def observing_cases(asked: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Summaries, chosen weights and decoding."""
    from regard.formula.call import SCORING, read_call
    from regard.formula.request import build
    from regard.implementations.packing import pack
    from regard.implementations.triton.dot.decode import decode
    from regard.implementations.triton.summary import op as summary

    def summarize(d: int, dtype: torch.dtype, **given: Any) -> None:
        q, k = (torch.empty(1, 16, 4096, d, dtype=dtype) for _ in range(2))
        request = build(read_call("summarize", SCORING, q, k, k, given)).reduced()
        assert summary.runs(request, 8)
        tensors, spec = pack(request)
        summary._run(request.query, request.key, request.sink, tensors, spec, request.scale, 8)

    for d, dtype in ((128, torch.bfloat16), (64, torch.bfloat16), (256, torch.bfloat16), (64, torch.float32)):
        yield f"summary d{d} {str(dtype)[6:]}", partial(summarize, d, dtype)
    for name in ("window", "documents", "alibi"):
        yield f"summary {name}", partial(summarize, 128, torch.bfloat16, **asked[name])

    def decoding(batch: int, keys: int, **given: Any) -> None:
        q = torch.empty(batch, 32, 1, 128, dtype=torch.bfloat16)
        k, v = (torch.empty(batch, 8, keys, 128, dtype=torch.bfloat16) for _ in range(2))
        decode(q, k, v, 0.1, **given)

    yield "decoding", partial(decoding, 1, 4096)
    yield "decoding, all at once", partial(decoding, 64, 77)
    yield "decoding, lengths", partial(decoding, 8, 32768, high=torch.tensor([9] * 8, dtype=torch.int32))
    yield "decoding, lengths of 64 bits", partial(decoding, 1, 4096, high=torch.tensor([9]))


def small_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Small models in few kernels: a stack of layers, and attention over few keys."""
    from regard_fast.fused_rows import op, short_attention, stack_loss_op, stack_op, vectors

    def stack(batch: int, length: int, dim: int, heads: int, **tuning: int) -> None:
        usual = dict(vars(op.TUNING))
        vars(op.TUNING).update(tuning)
        options = stack_op.StackOptions("gelu", [0.1] * 6, [1e-5] * 4, heads, True, 0.2, torch.bfloat16)
        x, seed = torch.empty(batch, length, dim), torch.tensor([3])
        pieces = options.pieces()
        stages = [op.Stages(one.out, one.feed, one.maps, dim, 4 * dim if one.feed else 0) for one in pieces]
        weights = [torch.empty(shape, dtype=torch.bfloat16) for one in stages for shape in one.shapes()]
        last, kept = stack_op._forward(x, seed, weights, *options.listed())
        stack_op._backward(x, x, seed, last, kept, weights, *options.listed())
        head = [torch.empty(dim), torch.empty(dim), torch.empty(67, dim, dtype=torch.bfloat16), torch.empty(67)]
        given, targets = (1e-5, 0.0, *options.listed()), torch.zeros(batch, length, dtype=torch.long)
        for rows, rate in (((x, None, None), 0.0), ((None, targets, torch.empty(67, dim)), 0.1)):
            said = (3.0, rate, rate > 0, *given)
            total, count, _, whole = stack_loss_op._forward(*rows, seed, targets, None, weights, head, *said)
            stack_loss_op._backward(total, count, *rows, seed, whole, weights, head, *said)
        vars(op.TUNING).update(usual)

    def embedded(batch: int, length: int, width: int, dim: int, rate: float, waves: bool) -> None:
        data, seed = torch.empty(batch, length, width), torch.tensor([3])
        weights, options = (torch.empty(dim, width), torch.empty(dim)), (rate, waves, torch.bfloat16)
        found = vectors._forward(data, *weights, seed, *options)
        vectors._backward(found, data, weights[0], seed, *options)

    yield from head_cases()
    yield "rows of vectors", partial(embedded, 32, 8, 8, 128, 0.1, True)
    yield "rows of vectors, one number each", partial(embedded, 32, 64, 1, 128, 0.1, True)
    yield "rows of vectors, largest", partial(embedded, 8, 61, 64, 256, 0.0, False)
    yield "small stack", partial(stack, 32, 64, 128, 4)
    yield "small stack of 256", partial(stack, 8, 13, 256, 8)
    for name, tuning in (
        ("tile 64, 5 stages", {"tile": 64, "stages": 5}),
        ("4 stages", {"stages": 4}),
        ("gradients in tiles of 64", {"grad_tall": 64}),
        ("gradients 128 wide", {"grad_width": 128}),
    ):
        yield f"small stack, {name}", partial(stack, 32, 64, 128, 4, **tuning)

    yield "LSTM, two layers both ways", partial(lstm, 32, 8, 128, 64, 2, 2)
    yield "LSTM, 128 wide", partial(lstm, 32, 8, 128, 128, 1, 1)
    yield "LSTM, padding", partial(lstm, 32, 8, 100, 32, 2, 1, torch.ones(32, 8, dtype=torch.bool))

    def short(queries: int, keys: int, width: int) -> None:
        q, k, v = (torch.empty(2, 4, n, width, dtype=torch.bfloat16) for n in (queries, keys, keys))
        short_attention._forward(q, k, v, False, 0.2)
        short_attention._backward(q, q, k, v, False, 0.2)

    for sizes in ((16, 8, 32), (8, 16, 32), (4, 36, 32), (64, 64, 128), (64, 64, 16)):
        yield f"short attention {sizes}", partial(short, *sizes)
    yield from memory_cases()


def memory_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Memories between fused rows: the models of `digits`, and the largest sizes."""
    from regard_fast.fused_memory import op, static
    from regard_fast.fused_memory.factors import SlotFactors
    from regard_fast.fused_memory.layout import MemorySizes, StaticSizes

    def memory(
        length: int, dim: int, heads: int, slots: int, segment: int, sides: int, gated: bool, **tuning: int
    ) -> None:
        usual = dict(vars(op.TUNING))
        vars(op.TUNING).update(tuning)
        given = [torch.empty(4, length, heads, dim // heads, dtype=torch.bfloat16).transpose(1, 2)] * 5
        shapes = MemorySizes(sides, slots, dim, gated).shapes()
        starts = [torch.empty(shape) for shape in shapes[:sides]]
        narrow = [torch.bfloat16 if len(shape) == 2 else torch.float32 for shape in shapes]
        weights = [torch.empty(*one, dtype=kind) for one, kind in zip(shapes[sides:], narrow[sides:], strict=True)]
        options = op.FusedMemoryOptions(sides == 1, segment, 0.2, 1e-5).listed()
        found, *kept = op._forward(given, starts, weights, *options)
        op._backward(found, given, starts, weights, *kept, *options)
        vars(op.TUNING).update(usual)

    yield "dynamic memory", partial(memory, 8, 128, 4, 16, 4, 2, True)
    yield "dynamic memory, four segments", partial(memory, 13, 128, 4, 16, 4, 2, True)
    yield "dynamic memory, normalised", partial(memory, 8, 128, 4, 16, 4, 1, False)
    yield "dynamic memory, largest", partial(memory, 61, 128, 1, 32, 32, 2, True)
    yield "dynamic memory, smallest", partial(memory, 5, 16, 1, 3, 3, 1, True)
    for warps in (4, 8):
        yield (
            f"dynamic memory, {warps} warps",
            partial(memory, 8, 128, 4, 16, 4, 2, True, write_warps=warps, back_warps=warps),
        )

    def once(length: int, dim: int, heads: int, slots: int, narrow: bool = True) -> None:
        given = [torch.empty(4, length, heads, dim // heads, dtype=torch.bfloat16).transpose(1, 2)] * 3
        made, options = StaticSizes(slots, dim), static.StaticOptions(0.2, 1e-5)
        first, *others = made.shapes()
        weights = [torch.empty(first)]
        weights += [
            torch.empty(one, dtype=torch.bfloat16 if narrow and len(one) == 2 else torch.float32) for one in others
        ]
        found, *kept = static.forward(given, weights, options)
        factors = SlotFactors([made], *kept)
        static.heads_back(found, given, weights, (kept[0], kept[1]), options, factors, 0)

    yield "static memory", partial(once, 8, 128, 4, 16)
    yield "static memory, 64 rows", partial(once, 64, 128, 4, 16)
    yield "static memory, largest", partial(once, 61, 128, 1, 32)
    yield "static memory, weights without copies", partial(once, 64, 128, 4, 16, narrow=False)
    yield "static memory, smallest", partial(once, 5, 16, 1, 3)


def lstm(
    batch: int, length: int, inputs: int, width: int, sides: int, layers: int, keep: torch.Tensor | None = None
) -> None:
    """Forward and backward of an LSTM in bfloat16, with dropout between layers."""
    from regard_fast.fused_rows import lstm_op

    rows, seed, weights = torch.empty(batch, length, inputs), torch.tensor([3]), []
    for number in range(layers * sides):
        across = inputs if number < sides else sides * width
        weights += [torch.empty(4 * width, one, dtype=torch.bfloat16) for one in (across, width)]
        weights += [torch.empty(4 * width) for _ in range(2)]
    given = (rows, keep, seed, weights, sides, 0.1, torch.bfloat16)
    final, _, _, kept = lstm_op._forward(*given)
    lstm_op._backward(final, None, None, final, kept, *given)


def head_cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """The end of a model: last normalisation, logits and their loss."""
    from regard_fast.fused_rows import head_op

    def head(batch: int, length: int, dim: int, outputs: int, keep: bool, pooled: bool = False) -> None:
        options = head_op.HeadOptions(1e-5, 0.1, torch.bfloat16)
        shapes: list[tuple[int, ...]] = [(dim,), (dim,), (outputs, dim), (outputs,)]
        weights = [torch.empty(shape, dtype=torch.bfloat16 if len(shape) > 1 else torch.float32) for shape in shapes]
        x = torch.empty(batch, length, dim)
        targets = torch.zeros((batch,) if pooled else (batch, length), dtype=torch.long)
        kept = torch.ones_like(targets, dtype=torch.bool) if keep else None
        found = head_op._forward(x, targets, kept, weights, *options.listed())
        head_op._backward(found[0], found[1], x, found[4], found[5], weights, pooled)

    def stack_and_loss(batch: int, length: int, dim: int, tokens: int) -> None:
        from regard_fast.fused_rows import op, stack_loss_op
        from regard_fast.fused_rows.stack_op import StackOptions

        options = StackOptions("gelu", [0.1] * 6, [1e-5] * 4, 4, True, 0.2, torch.bfloat16)
        stages = [op.Stages(one.out, one.feed, one.maps, dim, 4 * dim * one.feed) for one in options.pieces()]
        own = [torch.empty(shape, dtype=torch.bfloat16) for one in stages for shape in one.shapes()]
        last = [torch.empty(shape) for shape in ((dim,), (dim,), (tokens, dim), (tokens,))]
        ids, table = torch.zeros(batch, length, dtype=torch.long), torch.empty(tokens, dim)
        given = (2.0, 0.1, True, 1e-5, 0.1, *options.listed())
        seed = torch.tensor([3])
        found = stack_loss_op._forward(None, ids, table, seed, ids, None, own, last, *given)
        stack_loss_op._backward(found[0], found[1], None, ids, table, seed, found[3], own, last, *given)

    yield "small stack and loss", partial(stack_and_loss, 32, 64, 128, 67)
    for sizes in ((32, 64, 128, 67, False), (32, 64, 128, 131, True), (8, 13, 256, 512, True), (8, 13, 16, 5, False)):
        yield f"small head {sizes}", partial(head, *sizes)
    for sizes in ((32, 8, 128, 10, False), (32, 64, 128, 10, True), (8, 13, 256, 512, True), (8, 13, 16, 5, False)):
        yield f"pooled head {sizes}", partial(head, *sizes, pooled=True)
