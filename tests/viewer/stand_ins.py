"""A `Seen` made of given maps, for tests of the viewer without a model."""

import torch
import torch.nn.functional as F

import regard
from regard_workbench.viewer.page_model import PageModel, Variant
from tests.observation.maps import Maps


class StandIn:
    """A site whose calls are given as (query, key) pairs (b,h,n,d), or as finished maps (h,q,k)."""

    def __init__(self, name, calls, *, rows="position", columns="source", how="exact", kind="attend", causal=False):
        self.name, self.given, self.kind, self.how = name, calls, kind, how
        self.rows, self.columns, self.causal = rows, columns, causal
        self.asked = []  # number of rows of each request

    @property
    def calls(self):
        return len(self.given)

    def shape(self, call=-1):
        one = self.given[call]
        if isinstance(one, tuple):
            query, key = one
            return (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return (1, *one.shape)

    def _mask(self):
        return regard.masks.causal() if self.causal else None

    def weights(self, rows=None, heads=None, call=-1):
        rows = list(range(self.shape(call)[2])) if rows is None else list(rows)
        heads = list(range(self.shape(call)[1])) if heads is None else list(heads)
        self.asked.append(len(rows))
        one = self.given[call]
        if isinstance(one, tuple):
            return regard.weights(*one, mask=self._mask(), rows=rows, heads=heads)
        return one[None][:, heads][:, :, rows]

    def columns_of(self, keys, heads=None, call=-1):
        return self.weights(None, heads, call)[..., list(keys)]

    def summary(self, top=8, call=-1):
        one = self.given[call]
        if isinstance(one, tuple):
            return regard.summarize(*one, mask=self._mask(), top=top)
        return regard.summarize(one.log()[None], torch.eye(one.shape[2]).expand(1, len(one), -1, -1), scale=1, top=top)

    def pooled(self, height, width, heads=None, call=-1, batch=0, sampled=True):
        """The largest weight of each cell."""
        found = self.weights(None, heads, call)[batch]
        return F.adaptive_max_pool2d(found, (height, width))


class Seen(Maps):
    def __init__(self, sites, model=None):
        super().__init__(*sites)
        self.model = model


def random_map(heads, queries, keys, seed=0, sharp=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (sharp * torch.randn(heads, queries, keys, generator=generator)).softmax(-1)


def random_pair(heads, length, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(1.5 * torch.randn(1, heads, length, dim, generator=generator) for _ in range(2))


def small_page_model(layers=2, heads=3, length=7, labels=None, variants=1, seed=0):
    """Layers of random maps over `length` tokens, different for each variant."""
    texts = labels or [f"t{number}" for number in range(length)]

    def seen(which):
        maps = [random_map(heads, length, length, seed + 100 * which + layer) for layer in range(layers)]
        return Seen([StandIn(f"encoder.layer.{n}.attention", [one]) for n, one in enumerate(maps)])

    made = [Variant(f"variant {n}", seen(n), {"tokens": texts}) for n in range(variants)]
    return PageModel("a small model", made, words="random maps")
