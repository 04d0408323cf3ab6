"""Everything the core offers, each entry twice: as regard builds it, and as the oracle defines it.

A new score, mask, bias or normaliser is one line here; the contracts then hold it alone and in pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from regard import biases, masks, normalizers, scores
from tests import oracle
from tests.contracts.user_masks import Begins, HeadWindows, Runs


@dataclass(frozen=True)
class Sizes:
    """Distinct sizes, so that swapped axes cannot pass."""

    b: int = 3
    h: int = 4
    g: int = 2
    q: int = 19
    k: int = 19
    d: int = 5
    v: int = 7


SELF = Sizes()
FEW_QUERIES = Sizes(q=11, k=17)
MANY_QUERIES = Sizes(q=23, k=17)


def nothing(s):
    return {}


@dataclass(frozen=True)
class Differentiable:
    """A score or bias: the shapes of its tensors, how regard builds it, what it means."""

    shapes: Callable
    build: Callable
    formula: Callable


def score(build, formula, **shapes):
    return Differentiable(lambda s: {name: f(s) for name, f in shapes.items()}, build, formula)


def with_constant(formula, **constants):
    return lambda query, key, scale, t: formula(query, key, scale, {**t, **constants})


HIDDEN, RADIUS = 6, 4
TABLE = 2 * RADIUS + 1

SCORES = {
    "name scaled-dot": score(lambda t: "scaled-dot", oracle.scaled_dot),
    "name dot": score(lambda t: "dot", oracle.dot),
    "scaled_dot": score(lambda t: scores.scaled_dot(), oracle.scaled_dot),
    "dot": score(lambda t: scores.dot(), oracle.dot),
    "softcap": score(lambda t: scores.softcap(2.0), with_constant(oracle.softcap, cap=2.0)),
    "general": score(lambda t: scores.general(t["weight"]), oracle.general, weight=lambda s: (s.d, s.d)),
    "general per head": score(lambda t: scores.general(t["weight"]), oracle.general, weight=lambda s: (s.h, s.d, s.d)),
    "additive": score(lambda t: scores.additive(t["weight"]), oracle.additive, weight=lambda s: (s.d,)),
    "additive per head": score(lambda t: scores.additive(t["weight"]), oracle.additive, weight=lambda s: (s.h, s.d)),
    "concat": score(
        lambda t: scores.concat(t["weight_query"], t["weight_key"], t["weight"]),
        oracle.concat,
        weight_query=lambda s: (HIDDEN, s.d),
        weight_key=lambda s: (HIDDEN, s.d),
        weight=lambda s: (HIDDEN,),
    ),
    "concat per head": score(
        lambda t: scores.concat(t["weight_query"], t["weight_key"], t["weight"]),
        oracle.concat,
        weight_query=lambda s: (s.h, HIDDEN, s.d),
        weight_key=lambda s: (s.h, HIDDEN, s.d),
        weight=lambda s: (s.h, HIDDEN),
    ),
    "cosine": score(lambda t: scores.cosine(3.0), with_constant(oracle.cosine, strength=3.0)),
    "cosine per head": score(lambda t: scores.cosine(t["strength"]), oracle.cosine, strength=lambda s: (s.h,)),
    "cosine per query": score(
        lambda t: scores.cosine(t["strength"]), oracle.cosine, strength=lambda s: (s.b, s.h, s.q, 1)
    ),
    "shaw": score(lambda t: scores.shaw(t["table"]), oracle.shaw, table=lambda s: (TABLE, s.d)),
    "shaw per head": score(lambda t: scores.shaw(t["table"]), oracle.shaw, table=lambda s: (s.h, TABLE, s.d)),
    "transformer_xl": score(
        lambda t: scores.transformer_xl(t["content_bias"], t["position_bias"], t["table"]),
        oracle.transformer_xl,
        content_bias=lambda s: (s.d,),
        position_bias=lambda s: (s.d,),
        table=lambda s: (TABLE, s.d),
    ),
    "transformer_xl per head": score(
        lambda t: scores.transformer_xl(t["content_bias"], t["position_bias"], t["table"]),
        oracle.transformer_xl,
        content_bias=lambda s: (s.h, s.d),
        position_bias=lambda s: (s.h, s.d),
        table=lambda s: (s.h, TABLE, s.d),
    ),
}


def dense_shape(*letters):
    return lambda s: tuple(1 if x == 1 else getattr(s, x) for x in letters)


def bias(build, formula, **shapes):
    return Differentiable(lambda s: {name: f(s) for name, f in shapes.items()}, build, formula)


def raw(*letters):
    return bias(lambda t, s: t["bias"], lambda t, s: t["bias"], bias=dense_shape(*letters))


BUCKETS = 12


def partly_forbidden(t, s):
    """A bias of −inf on every fifth pair; no row is left without a key."""
    bars = (torch.arange(s.q)[:, None] * 3 + torch.arange(s.k)) % 5 == 0
    return t["bias"].masked_fill(bars.to(t["bias"].device), float("-inf"))


BIASES = {
    "none": bias(lambda t, s: None, lambda t, s: None),
    "raw q k": raw("q", "k"),
    "raw k": raw("k"),
    "raw h 1 k": raw("h", 1, "k"),
    "raw b 1 q k": raw("b", 1, "q", "k"),
    "dense b h q k": bias(
        lambda t, s: biases.dense(t["bias"]), lambda t, s: t["bias"], bias=dense_shape("b", "h", "q", "k")
    ),
    "some minus infinity": bias(partly_forbidden, partly_forbidden, bias=dense_shape("h", "q", "k")),
    "alibi": bias(lambda t, s: biases.alibi(s.h), lambda t, s: oracle.alibi(s.h, s.q, s.k)),
    "relative": bias(
        lambda t, s: biases.relative(t["table"]),
        lambda t, s: oracle.relative(t["table"], s.q, s.k),
        table=lambda s: (s.h, TABLE),
    ),
    "relative shared": bias(
        lambda t, s: biases.relative(t["table"]),
        lambda t, s: oracle.relative(t["table"], s.q, s.k),
        table=lambda s: (1, TABLE),
    ),
    "t5": bias(
        lambda t, s: biases.t5(t["table"], max_distance=14),
        lambda t, s: oracle.t5(t["table"], s.q, s.k, True, 14),
        table=lambda s: (BUCKETS, s.h),
    ),
    "t5 causal": bias(
        lambda t, s: biases.t5(t["table"], bidirectional=False, max_distance=14),
        lambda t, s: oracle.t5(t["table"], s.q, s.k, False, 14),
        table=lambda s: (BUCKETS, s.h),
    ),
    "gaussian": bias(
        lambda t, s: biases.gaussian(t["center"], 2.5),
        lambda t, s: oracle.gaussian(t["center"], 2.5, s.k),
        center=dense_shape("b", "h", "q"),
    ),
    "alibi + relative": bias(
        lambda t, s: biases.alibi(s.h) + biases.relative(t["table"]),
        lambda t, s: oracle.alibi(s.h, s.q, s.k).to(t["table"]) + oracle.relative(t["table"], s.q, s.k),
        table=lambda s: (s.h, TABLE),
    ),
}


class Doubled(normalizers.Normalizer):
    """A normaliser a user might write: twice the softmax of the visible scores."""

    def __call__(self, scores, visible):
        return 2 * normalizers.softmax()(scores, visible)


def twice_softmax(scores, seen):
    return 2 * oracle.softmax(scores, seen)


# name: (what is passed to regard, the exact definition, the plain formula)
NORMALIZERS = {name: (name, oracle.EXACT[name], oracle.PLAIN[name]) for name in oracle.EXACT}
NORMALIZERS["entmax15()"] = (normalizers.entmax15(), oracle.entmax15, oracle.sorted_entmax15)
CUSTOM_NORMALIZERS = {"a user's own": (Doubled(), twice_softmax, twice_softmax)}


@dataclass(frozen=True)
class MaskEntry:
    """build(sizes, device) -> (what is passed to regard, predicate(b, h, i, j)); square: q must equal k."""

    build: Callable
    square: bool = False


def structured(make, predicate):
    """A mask without tensors; predicate(position of the query, j, sizes)."""
    return MaskEntry(lambda s, device: (make(), lambda n, m, i, j: predicate(i + s.k - s.q, j, s)))


def numbers(values, device):
    return torch.tensor(values, device=device, dtype=torch.long)


def flags(values, device):
    return torch.tensor(values, device=device, dtype=torch.bool)


def mask_offsets(s, device):
    offsets = [2, 0, 5]
    return masks.causal(offset=numbers(offsets, device)), lambda n, m, i, j: j <= i + offsets[n]


def mask_lengths(s, device):
    keys = [s.k, s.k - 6, 1]
    return masks.lengths(numbers(keys, device)), lambda n, m, i, j: j < keys[n]


def mask_both_lengths(s, device):
    keys, queries = [s.k - 3, s.k, 2], [s.q, 1, s.q - 4]
    mask = masks.lengths(numbers(keys, device), numbers(queries, device))
    return mask, lambda n, m, i, j: j < keys[n] and i < queries[n]


def mask_padding(s, device):
    keep = [[(j + n) % 3 != 0 for j in range(s.k)] for n in range(s.b)]
    return masks.padding(flags(keep, device)), lambda n, m, i, j: keep[n][j]


def mask_both_paddings(s, device):
    keep = [[(j + n) % 4 != 0 for j in range(s.k)] for n in range(s.b)]
    queries = [[(i + n) % 5 != 1 for i in range(s.q)] for n in range(s.b)]
    mask = masks.padding(flags(keep, device), flags(queries, device))
    return mask, lambda n, m, i, j: keep[n][j] and queries[n][i]


def mask_documents(s, device):
    ids = [[-1 if j >= s.k - n else (j + 2 * n) // 6 for j in range(s.k)] for n in range(s.b)]
    return masks.documents(numbers(ids, device)), lambda n, m, i, j: ids[n][i] == ids[n][j] >= 0


def mask_cross_documents(s, device):
    keys = [[(j + n) % 4 - 1 for j in range(s.k)] for n in range(s.b)]
    queries = [[i % 5 - 1 for i in range(s.q)] for n in range(s.b)]
    mask = masks.documents(numbers(queries, device), numbers(keys, device))
    return mask, lambda n, m, i, j: queries[n][i] == keys[n][j] >= 0


def mask_packed(s, device):
    ends = [0, 4, 5, s.k - 1, s.k]  # the last document has length 1
    number = [sum(j >= e for e in ends) for j in range(s.k)]
    return masks.packed(numbers(ends, device)), lambda n, m, i, j: number[i] == number[j]


def mask_prefixes(s, device):
    prefix = [3, 0, 7]
    mask = masks.causal() | masks.prefix(numbers(prefix, device))
    return mask, lambda n, m, i, j: j <= i + s.k - s.q or j < prefix[n]


def mask_global(s, device):
    index = [0, 5, s.k - 1]

    def predicate(n, m, i, j):
        p = i + s.k - s.q
        return -2 <= j - p <= 2 or p in index or j in index

    return masks.window(2) | masks.global_tokens(index), predicate


def tensor_mask(letters, wrap):
    def build(s, device):
        shape = dense_shape(*letters)(s)
        seen = torch.rand(shape, generator=torch.Generator().manual_seed(7)) > 0.4
        full = seen.expand(s.b, s.h, s.q, s.k).tolist()
        return wrap(seen.to(device)), lambda n, m, i, j: full[n][m][i][j]

    return MaskEntry(build)


raw_mask = partial(tensor_mask, wrap=lambda seen: seen)
dense_mask = partial(tensor_mask, wrap=masks.dense)


def mask_nested(s, device):
    lengths = [s.k, 4, s.k - 5]
    mask = (masks.causal() & ~masks.dilated(3)) | (masks.blocks(4) & masks.lengths(numbers(lengths, device)))

    def predicate(n, m, i, j):
        p = i + s.k - s.q
        return (j <= p and (j - p) % 3 != 0) or (j // 4 == p // 4 and j < lengths[n])

    return mask, predicate


def mask_begins(s, device):
    first = [s.k - 2 - 3 * m for m in range(s.h)]
    return Begins(numbers(first, device)), lambda n, m, i, j: j >= first[m]


MASKS = {
    "none": MaskEntry(lambda s, device: (None, lambda n, m, i, j: True)),
    "full": structured(masks.full, lambda p, j, s: True),
    "causal": structured(masks.causal, lambda p, j, s: j <= p),
    "causal top-left": structured(lambda: masks.causal(align="top-left"), lambda p, j, s: j <= p - (s.k - s.q)),
    "causal offset": structured(lambda: masks.causal(offset=3), lambda p, j, s: j <= p - (s.k - s.q) + 3),
    "causal offsets": MaskEntry(mask_offsets),
    "window both": structured(lambda: masks.window(2), lambda p, j, s: abs(j - p) <= 2),
    "window before": structured(lambda: masks.window(5, 0), lambda p, j, s: p - 5 <= j <= p),
    "window itself": structured(lambda: masks.window(0, 0), lambda p, j, s: j == p),
    "window uneven top-left": structured(
        lambda: masks.window(1, 3, align="top-left"), lambda p, j, s: -1 <= j - (p - (s.k - s.q)) <= 3
    ),
    "lengths": MaskEntry(mask_lengths),
    "lengths of both": MaskEntry(mask_both_lengths),
    "padding": MaskEntry(mask_padding),
    "padding of both": MaskEntry(mask_both_paddings),
    "documents": MaskEntry(mask_documents, square=True),
    "documents across": MaskEntry(mask_cross_documents),
    "packed": MaskEntry(mask_packed, square=True),
    "prefix": structured(lambda: masks.prefix(5), lambda p, j, s: j < 5),
    "prefix language model": MaskEntry(mask_prefixes),
    "blocks": structured(lambda: masks.blocks(4), lambda p, j, s: p // 4 == j // 4),
    "dilated": structured(lambda: masks.dilated(3), lambda p, j, s: (p - j) % 3 == 0),
    "window and global": MaskEntry(mask_global),
    "not causal": structured(lambda: ~masks.causal(), lambda p, j, s: j > p),
    "dense q k": dense_mask(("q", "k")),
    "dense b h q k": dense_mask(("b", "h", "q", "k")),
    "raw k": raw_mask(("k",)),
    "raw 1 k": raw_mask((1, "k")),
    "raw q 1": raw_mask(("q", 1)),
    "raw q k": raw_mask(("q", "k")),
    "raw h q k": raw_mask(("h", "q", "k")),
    "raw b 1 1 k": raw_mask(("b", 1, 1, "k")),
    "raw b h q k": raw_mask(("b", "h", "q", "k")),
    "nested": MaskEntry(mask_nested),
    "a user's runs by head and entry": MaskEntry(lambda s, device: (Runs(4), Runs(4).sees)),
    "a user's windows by head": MaskEntry(
        lambda s, device: (HeadWindows(2), lambda n, m, i, j: HeadWindows(2).sees(m, j - i - s.k + s.q))
    ),
    "a user's tensor by head": MaskEntry(mask_begins),
}
