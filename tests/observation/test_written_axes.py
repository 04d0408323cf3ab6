"""Axes of written-out attention come from the products that were computed, and W @ v = output proves them."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import regard

WIDTH = 5
DISTINCT, EQUAL = (2, 3, 7), (3, 3, 3)  # batch, heads, length


class Projected(nn.Module):
    """Queries, keys and values (b,n,h,d); its number of heads has a name that nobody knows."""

    def __init__(self, heads, groups=None):
        super().__init__()
        self.count = heads
        self.query = nn.Linear(heads * WIDTH, heads * WIDTH)
        self.key, self.value = (nn.Linear(heads * WIDTH, (groups or heads) * WIDTH) for _ in range(2))

    def projected(self, x):
        return [part(x).unflatten(-1, (-1, WIDTH)) for part in (self.query, self.key, self.value)]


class Ordered(Projected):
    """Rows and maps with their axes in any order."""

    def __init__(self, heads, rows, order):
        super().__init__(heads)
        self.asks, self.keys, self.order = rows.replace("n", "q"), rows.replace("n", "k"), order

    def forward(self, x):
        query, key, value = self.projected(x)
        query = torch.einsum(f"bqhd->{self.asks}", query)
        key, value = (torch.einsum(f"bkhd->{self.keys}", part) for part in (key, value))
        scores = torch.einsum(f"{self.asks},{self.keys}->{self.order}", query, key)
        weights = scores.softmax(self.order.index("k"))
        self.truth = torch.einsum(f"{self.order}->bhqk", weights).detach()
        mixed = torch.einsum(f"{self.order},{self.keys}->{self.asks}", weights, value)
        self.mixed = torch.einsum(f"{self.asks}->bhqd", mixed).detach()
        return mixed


def seen_once(model, x):
    """The only site of a model, whose output keeps its bits."""
    with torch.no_grad():
        plain = model(x)
        with regard.observe(model) as seen:
            assert torch.equal(model(x), plain)
    assert seen.unseen == []
    (name,) = seen.names()
    return seen, seen[name]


def assert_shows(site, truth):
    assert site.shape() == truth.shape and site.how == "exact"
    torch.testing.assert_close(site.weights(), truth, rtol=0, atol=1e-6)
    rows = [truth.shape[2] - 1, 0]
    torch.testing.assert_close(site.weights(rows=rows), truth[:, :, rows], rtol=0, atol=1e-6)
    assert site.how == "exact"


@pytest.mark.parametrize("sizes", [DISTINCT, EQUAL], ids=["distinct", "equal"])
@pytest.mark.parametrize("order", ["bhqk", "bqhk", "bqkh", "qkbh", "hbqk", "bhkq", "kqhb"])
@pytest.mark.parametrize("rows", ["bnhd", "bhnd", "nbhd", "hbnd"])
def test_any_order_of_axes_is_read_from_the_products(rows, order, sizes):
    batch, heads, length = sizes
    model = Ordered(heads, rows, order)
    seen, site = seen_once(model, torch.randn(batch, length, heads * WIDTH))
    assert_shows(site, model.truth)
    found = seen.ablate({site.name: [1]}, loss=lambda output: output.square().sum())
    kept = [head for head in range(heads) if head != 1]
    assert found.after == pytest.approx(model.mixed[:, kept].square().sum().item(), rel=1e-4)


class Flat(Projected):
    """Batch and heads in one axis, in either order."""

    def __init__(self, heads, heads_first):
        super().__init__(heads)
        self.heads_first = heads_first

    def forward(self, x):
        order = (2, 0, 1, 3) if self.heads_first else (0, 2, 1, 3)
        query, key, value = (part.permute(order).reshape(-1, *x.shape[1:2], WIDTH) for part in self.projected(x))
        weights = torch.bmm(query, key.transpose(1, 2)).softmax(-1)
        shape = (self.count, len(x)) if self.heads_first else (len(x), self.count)
        truth = weights.unflatten(0, shape)
        self.truth = truth.transpose(0, 1) if self.heads_first else truth
        return torch.bmm(weights, value)


class HeadsCut(Projected):
    """Features cut into heads that are put behind one another in the batch."""

    def forward(self, x):
        query, key, value = (
            torch.cat(part(x).chunk(self.count, dim=-1), dim=0) for part in (self.query, self.key, self.value)
        )
        weights = (query @ key.mT).softmax(-1)
        self.truth = weights.unflatten(0, (self.count, len(x))).transpose(0, 1)
        return weights @ value


class OneKeyHead(Projected):
    def __init__(self, heads):
        super().__init__(heads, groups=1)

    def forward(self, x):
        query, key, value = self.projected(x)
        weights = torch.einsum("bqhd,bkd->bhqk", query, key[:, :, 0]).softmax(-1)
        self.truth = weights
        return torch.einsum("bhqk,bkd->bhqd", weights, value[:, :, 0])


class Grouped(Projected):
    """Six heads over two heads of keys."""

    def __init__(self, heads):
        super().__init__(2 * heads, groups=2)
        self.narrow = nn.Linear(heads * WIDTH, 2 * heads * WIDTH)

    def forward(self, x):
        query, key, value = self.projected(self.narrow(x))
        query = query.unflatten(2, (2, -1))
        weights = torch.einsum("bqgrd,bkgd->bgrqk", query, key).softmax(-1)
        self.truth = weights.flatten(1, 2)
        return torch.einsum("bgrqk,bkgd->bqgrd", weights, value)


class Channels(Projected):
    """Channels attend to channels, over all positions (XCiT)."""

    def forward(self, x):
        query, key, value = (part.permute(0, 2, 3, 1) for part in self.projected(x))
        self.truth = (query @ key.mT).softmax(-1)
        return self.truth @ value


class Slots(Projected):
    """Slots compete for positions: a softmax over queries, then a weighted mean over keys."""

    def forward(self, x):
        query, key, value = self.query(x)[:, :3], self.key(x), self.value(x)
        weights = torch.einsum("bqd,bkd->bqk", query, key).softmax(1)
        weights = weights / weights.sum(-1, keepdim=True)
        self.truth = weights[:, None]
        return torch.einsum("bqk,bkd->bqd", weights, value)


class Relative(Projected):
    """Values of relative positions are mixed first: they depend on the query, too, but not on the example."""

    def __init__(self, heads):
        super().__init__(heads)
        self.table = nn.Embedding(64, WIDTH)

    def forward(self, x):
        query, key, value = self.projected(x)
        self.truth = torch.einsum("bqhd,bkhd->bhqk", query, key).softmax(-1)
        place = torch.arange(x.shape[1])
        near = self.table(place[:, None] - place[None] + 32)
        return torch.einsum("bhqk,qkd->bqhd", self.truth, near) + torch.einsum("bhqk,bkhd->bqhd", self.truth, value)


class Windows(Projected):
    """Windows of a picture are examples of their own."""

    def forward(self, x):
        rows = [part.unflatten(1, (-1, x.shape[1] // 2)).transpose(2, 3) for part in self.projected(x)]
        query, key, value = (part.reshape(-1, *part.shape[2:]) for part in rows)
        self.truth = (query @ key.mT).softmax(-1)
        return self.truth @ value


CASES = [
    lambda heads: Flat(heads, False),
    lambda heads: Flat(heads, True),
    HeadsCut,
    OneKeyHead,
    Grouped,
    Channels,
    Slots,
    Relative,
]


@pytest.mark.parametrize("sizes", [DISTINCT, EQUAL, (2, 3, 3)], ids=str)
@pytest.mark.parametrize("kind", CASES)
def test_heads_are_told_from_batch_and_queries_by_where_they_come_from(kind, sizes):
    batch, heads, length = sizes
    model = kind(heads)
    _, site = seen_once(model, torch.randn(batch, length, heads * WIDTH))
    assert_shows(site, model.truth)


def test_windows_are_batch():
    model = Windows(3)
    _, site = seen_once(model, torch.randn(2, 14, 3 * WIDTH))
    assert_shows(site, model.truth)


@pytest.mark.parametrize(
    "kind", [OneKeyHead, lambda heads: Flat(heads, True), lambda heads: Ordered(heads, "bhnd", "bqhk")]
)
def test_one_query_and_one_key(kind):
    model = kind(3)
    _, site = seen_once(model, torch.randn(2, 1, 3 * WIDTH))
    assert_shows(site, model.truth)


@pytest.mark.parametrize("wrong", [(0, 1, 3, 2), (1, 0, 2, 3), (2, 1, 0, 3), (0, 2, 1, 3)])
def test_the_proof_refuses_every_other_arrangement_of_the_axes(wrong):
    model = Ordered(3, "bnhd", "bqkh")
    _, site = seen_once(model, torch.randn(3, 3, 3 * WIDTH))
    reading = site.reading()
    groups = reading.layout.groups
    site.readings[-1] = replace(
        reading, layout=replace(reading.layout, groups=tuple(groups[at] for at in wrong)), _proven=None
    )
    assert site.how == "unverified"


def test_weights_that_cannot_be_recomputed_as_they_were_are_unverified():
    class DropsKeys(Projected):
        def forward(self, x):
            query, key, value = self.projected(x)
            scores = torch.einsum("bqhd,bkhd->bhqk", query, key)
            return torch.einsum("bhqk,bkhd->bqhd", nn.functional.dropout(scores, 0.5).softmax(-1), value)

    torch.manual_seed(2)
    model = DropsKeys(3).train()
    with regard.observe(model) as seen:
        model(torch.randn(2, 7, 3 * WIDTH))
    assert seen["DropsKeys"].how == "unverified"


def test_dropout_is_no_part_of_the_weights_of_a_sum_of_products():
    class Summed(Projected):
        def forward(self, x):
            query, key, value = (part.transpose(1, 2) for part in self.projected(x))
            self.truth = (query[..., :, None, :] * key[..., None, :, :]).sum(-1).softmax(-1)
            self.dropped = nn.functional.dropout(self.truth, 0.4)
            return self.dropped @ value

    model = Summed(3).train()
    with regard.observe(model) as seen:
        model(torch.randn(2, 7, 3 * WIDTH))
    assert (model.dropped == 0).any()
    assert_shows(seen["Summed"], model.truth)


def test_values_that_were_scaled_after_the_mixing_are_not_what_it_mixed():
    """An addend of `baddbmm` is no mixed value, so the weights are not proven."""

    class Added(Projected):
        def forward(self, x):
            query, key, value = (part[:, :, 0] for part in self.projected(x))
            return torch.baddbmm(value, torch.bmm(query, key.mT).softmax(-1), value)

    model = Added(3)
    with torch.no_grad(), regard.observe(model) as seen:
        model(torch.randn(2, 7, 3 * WIDTH))
    assert seen["Added"].how == "unverified"
