"""Random mask expressions, each with the dense truth that its definition gives, entry by entry."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from regard import masks
from tests import oracle


@dataclass(frozen=True)
class Grid:
    b: int
    h: int
    q: int
    k: int

    def truth(self, predicate):
        return oracle.visible(predicate, self.b, self.h, self.q, self.k)

    def position(self, i):
        return i + self.k - self.q


@dataclass(frozen=True)
class Drawn:
    """A mask, its dense truth, whether it holds no tensor, whether it is a function of the key alone."""

    mask: masks.Mask
    truth: torch.Tensor
    exact: bool = False
    of_keys: bool = False


@st.composite
def grids(draw, smallest=0, largest=13):
    sizes = st.integers(smallest, largest)
    return Grid(draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(sizes), draw(sizes))


def bools(draw, *shape):
    count = 1
    for n in shape:
        count *= n
    return torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)), dtype=torch.bool).reshape(shape)


def integers(draw, low, high, count):
    return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))


def aligned(draw, g):
    """Keyword arguments of causal and window, the shift of each sample, and whether a tensor is inside."""
    kind = draw(st.sampled_from(["default", "bottom-right", "top-left", "offset", "offsets"]))
    if kind in ("default", "bottom-right"):
        return ({} if kind == "default" else {"align": kind}), [g.k - g.q] * g.b, True
    if kind == "top-left":
        return {"align": kind}, [0] * g.b, True
    if kind == "offset":
        shift = draw(st.integers(-6, 15))
        return {"offset": shift}, [shift] * g.b, True
    shifts = integers(draw, -6, 15, g.b)
    return {"offset": torch.tensor(shifts)}, shifts, False


def full(draw, g):
    return Drawn(masks.full(), g.truth(lambda n, m, i, j: True), exact=True, of_keys=True)


def causal(draw, g):
    arguments, shift, exact = aligned(draw, g)
    return Drawn(masks.causal(**arguments), g.truth(lambda n, m, i, j: j <= i + shift[n]), exact)


def window(draw, g):
    arguments, shift, exact = aligned(draw, g)
    before = draw(st.integers(0, 6))
    after = draw(st.one_of(st.none(), st.integers(0, 6)))
    reach = before if after is None else after
    mask = masks.window(before, after, **arguments)
    return Drawn(mask, g.truth(lambda n, m, i, j: i + shift[n] - before <= j <= i + shift[n] + reach), exact)


def lengths(draw, g):
    keys = integers(draw, 0, g.k, g.b)
    if draw(st.booleans()):
        mask = masks.lengths(torch.tensor(keys))
        return Drawn(mask, g.truth(lambda n, m, i, j: j < keys[n]), of_keys=True)
    queries = integers(draw, 0, g.q, g.b)
    mask = masks.lengths(torch.tensor(keys), torch.tensor(queries))
    return Drawn(mask, g.truth(lambda n, m, i, j: j < keys[n] and i < queries[n]))


def padding(draw, g):
    keep = bools(draw, g.b, g.k)
    if draw(st.booleans()):
        return Drawn(masks.padding(keep), g.truth(lambda n, m, i, j: keep[n, j]), of_keys=True)
    queries = bools(draw, g.b, g.q)
    return Drawn(masks.padding(keep, queries), g.truth(lambda n, m, i, j: keep[n, j] and queries[n, i]))


def documents(draw, g):
    keys = [integers(draw, -1, 2, g.k) for _ in range(g.b)]
    queries = [integers(draw, -1, 2, g.q) for _ in range(g.b)]
    mask = masks.documents(
        torch.tensor(queries, dtype=torch.long).reshape(g.b, g.q),
        torch.tensor(keys, dtype=torch.long).reshape(g.b, g.k),
    )
    return Drawn(mask, g.truth(lambda n, m, i, j: queries[n][i] == keys[n][j] >= 0))


def prefix(draw, g):
    if draw(st.booleans()):
        count = draw(st.integers(0, 15))
        return Drawn(masks.prefix(count), g.truth(lambda n, m, i, j: j < count), exact=True, of_keys=True)
    counts = integers(draw, 0, 15, g.b)
    return Drawn(masks.prefix(torch.tensor(counts)), g.truth(lambda n, m, i, j: j < counts[n]), of_keys=True)


def blocks(draw, g):
    size = draw(st.integers(1, 6))
    return Drawn(masks.blocks(size), g.truth(lambda n, m, i, j: g.position(i) // size == j // size), exact=True)


def dilated(draw, g):
    step = draw(st.integers(1, 5))
    return Drawn(masks.dilated(step), g.truth(lambda n, m, i, j: (g.position(i) - j) % step == 0), exact=True)


def global_tokens(draw, g):
    index = draw(st.lists(st.integers(0, 12), max_size=3, unique=True))
    truth = g.truth(lambda n, m, i, j: g.position(i) in index or j in index)
    return Drawn(masks.global_tokens(index), truth)


def dense(draw, g):
    shape = draw(
        st.sampled_from([(g.q, g.k), (1, g.k), (g.q, 1), (g.h, g.q, g.k), (g.b, 1, g.q, g.k), (g.b, g.h, g.q, g.k)])
    )
    seen = bools(draw, *shape)
    return Drawn(masks.dense(seen), seen.expand(g.b, g.h, g.q, g.k))


EXACT = {"full": full, "causal": causal, "window": window, "prefix": prefix, "blocks": blocks, "dilated": dilated}
OF_KEYS = {"full": full, "lengths": lengths, "padding": padding, "prefix": prefix}
LEAVES = {**EXACT, **OF_KEYS, "documents": documents, "global_tokens": global_tokens, "dense": dense}


@st.composite
def leaves(draw, g, among=tuple(LEAVES)):
    return LEAVES[draw(st.sampled_from(sorted(among)))](draw, g)


def combine(draw, g, depth, leaf):
    if depth == 0:
        return leaf(draw)
    kind = draw(st.sampled_from(["and", "or", "not", "leaf"]))
    if kind == "leaf":
        return leaf(draw)
    a = combine(draw, g, depth - 1, leaf)
    if kind == "not":
        return Drawn(~a.mask, ~a.truth, a.exact, a.of_keys)
    b = combine(draw, g, depth - 1, leaf)
    if kind == "and":
        return Drawn(a.mask & b.mask, a.truth & b.truth, False, a.of_keys and b.of_keys)
    return Drawn(a.mask | b.mask, a.truth | b.truth, False, a.of_keys and b.of_keys)


@st.composite
def expressions(draw, g, depth=3, among=tuple(LEAVES)):
    return combine(draw, g, depth, lambda draw: draw(leaves(g, among)))
