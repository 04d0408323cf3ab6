"""Ways in which attention is written out: what mixes values is seen, what does not is told, with the true reason."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.observation.capture.written.tape import OperationTape
from regard.observation.coverage import PartialView

BATCH, HEADS, LENGTH, WIDTH = 2, 3, 7, 5


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        dim = HEADS * WIDTH
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))

    def rows(self, x):
        return [part(x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in (self.query, self.key, self.value)]

    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = self.normalize(query @ key.mT / 2)
        return self.truth @ value


class InSequential(Base):
    """lucidrains' idiom."""

    def __init__(self):
        super().__init__()
        self.normalize = nn.Sequential(nn.Softmax(dim=-1), nn.Dropout(0.1))


class Normalizes(nn.Module):
    def forward(self, scores):
        return scores.softmax(-1)


class Scores(nn.Module):
    def forward(self, query, key):
        return query @ key.mT / 2


class Mixes(nn.Module):
    def forward(self, weights, value):
        return torch.einsum("bhqk,bhkd->bhqd", weights, value)


class NormalizedByAPart(Base):
    def __init__(self):
        super().__init__()
        self.normalize = Normalizes()


class AllInParts(Base):
    def __init__(self):
        super().__init__()
        self.score, self.parts = Scores(), nn.ModuleList([Normalizes(), Mixes()])

    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = self.parts[0](self.score(query, key))
        return self.parts[1](self.truth, value)


class ByHand(Base):
    def normalize(self, scores):
        exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
        return exponentials / (exponentials.sum(-1, keepdim=True) + 1e-9)


class ByHandInPlace(Base):
    def normalize(self, scores):
        scores = scores.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf).exp()
        scores /= scores.sum(-1, keepdim=True)
        return scores


class ByLogarithm(Base):
    def normalize(self, scores):
        return F.log_softmax(scores, -1).exp()


class SumsOfProducts(Base):
    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = (query[..., :, None, :] * key[..., None, :, :]).sum(-1).softmax(-1)
        return (self.truth[..., None] * value[..., None, :, :]).sum(-2)


class Differential(Base):
    """Two maps in one product."""

    def forward(self, x):
        query, key, value = self.rows(x)
        first, second = ((query[..., part] @ key[..., part].mT).softmax(-1) for part in (slice(2), slice(2, 5)))
        self.truth = first - 0.3 * second
        return self.truth @ value


class Additive(nn.Module):
    """tanh(W q + U k) · c, over another sequence."""

    def __init__(self):
        super().__init__()
        self.query, self.key = (nn.Linear(HEADS * WIDTH, 11) for _ in range(2))
        self.c = nn.Linear(11, 1, bias=False)

    def forward(self, x):
        source = x[:, :4]
        scores = self.c(torch.tanh(self.query(x)[:, :, None] + self.key(source)[:, None])).squeeze(-1)
        weights = F.softmax(scores, dim=-1)
        self.truth = weights[:, None]
        return torch.bmm(weights, source)


class LearnedQueries(nn.Module):
    """Nothing is projected, and no name says what it does (PatchMerger)."""

    def __init__(self):
        super().__init__()
        self.asks = nn.Parameter(torch.randn(3, HEADS * WIDTH))

    def forward(self, x):
        weights = (self.asks @ x.mT / 4).softmax(-1)
        self.truth = weights[:, None]
        return weights @ x


class OneLearnedQuery(nn.Module):
    """Yang et al. 2016: softmax(c · tanh(W x)) over the positions."""

    def __init__(self):
        super().__init__()
        self.map, self.c = nn.Linear(HEADS * WIDTH, 11), nn.Linear(11, 1, bias=False)

    def forward(self, x):
        weights = self.c(torch.tanh(self.map(x))).squeeze(-1).softmax(-1)
        self.truth = weights[:, None, None]
        return (weights[..., None] * x).sum(1)


class Sampling(nn.Module):
    """Which rows of a map to keep, by the weight that the first row gives times the norm of the values."""

    def forward(self, weights, value):
        importance = torch.einsum("bhn,bhn->bn", weights[..., 0, 1:], value[..., 1:, :].norm(dim=-1))
        kept = importance.topk(3, dim=-1).indices.sort().values + 1
        return weights.gather(2, kept[:, None, :, None].expand(-1, HEADS, -1, LENGTH))


class Sampled(Base):
    """Adaptive token sampling: a part of the map enters another product before the map mixes the values."""

    def __init__(self):
        super().__init__()
        self.sampling = Sampling()

    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = self.sampling((query @ key.mT).softmax(-1), value)
        return self.truth @ value


class Measured(Base):
    """Its entropy, a product of the map with itself, comes before the mixing."""

    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = (query @ key.mT).softmax(-1)
        self.entropy = -torch.einsum("bhqk,bhqk->bhq", self.truth, self.truth.log())
        return self.truth @ value


class Neighbours(Base):
    """Each position attends to gathered neighbours: an example of its own, with one query."""

    def forward(self, x):
        query, key, value = self.rows(x)
        near = (torch.arange(LENGTH)[:, None] + torch.arange(-1, 3)).clamp(0, LENGTH - 1)
        weights = (query[..., None, :] * key[:, :, near]).sum(-1).softmax(-1)
        self.truth = weights.transpose(1, 2).reshape(-1, HEADS, 1, 4)
        return (weights[..., None] * value[:, :, near]).sum(-2)


KINDS = [
    InSequential,
    NormalizedByAPart,
    AllInParts,
    ByHand,
    ByHandInPlace,
    ByLogarithm,
    SumsOfProducts,
    Differential,
    Additive,
    LearnedQueries,
    OneLearnedQuery,
    Sampled,
    Measured,
    Neighbours,
]


def drawn():
    return torch.randn(BATCH, LENGTH, HEADS * WIDTH)


@pytest.mark.parametrize("kind", KINDS)
def test_what_mixed_the_values_is_seen_beside_other_attention(kind):
    first = nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 11, batch_first=True)
    model, x = nn.Sequential(first, kind()).eval(), drawn()
    with torch.no_grad():
        plain = model(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", PartialView)
            with regard.observe(model) as seen:
                assert torch.equal(model(x), plain)
    assert seen.names() == ["0.self_attn", "1"] and seen.unseen == []
    site, truth = seen["1"], model[1].truth
    assert site.how == "exact" and site.shape() == truth.shape
    torch.testing.assert_close(site.weights(), truth, rtol=0, atol=1e-6)
    torch.testing.assert_close(site.weights(rows=[-1]), truth[:, :, -1:], rtol=0, atol=1e-6)
    torch.testing.assert_close(site.summary().received, truth.mean(2), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not ByHandInPlace])  # which torch refuses
def test_training_under_observation_has_the_same_gradients(kind):
    torch.manual_seed(3)
    model, x = kind(), drawn()
    found = []
    for observed in (False, True):
        torch.manual_seed(4)
        model.zero_grad()
        if observed:
            with regard.observe(model):
                out = model(x)
        else:
            out = model(x)
        out.square().sum().backward()
        found.append([out.detach(), *(part.grad.clone() for part in model.parameters())])
    assert all(torch.equal(plain, observed) for plain, observed in zip(*found, strict=True))


class LoopsOverHeads(Base):
    """One softmax, whose heads are mixed one by one."""

    def forward(self, x):
        query, key, value = self.rows(x)
        self.truth = (query @ key.mT).softmax(-1)
        return torch.stack([self.truth[:, head] @ value[:, head] for head in range(HEADS)], 1)


def test_every_part_of_a_map_that_mixes_values_is_a_site():
    model = LoopsOverHeads()
    with torch.no_grad(), regard.observe(model) as seen:
        model(drawn())
    assert len(seen) == HEADS
    for head, name in enumerate(seen):
        torch.testing.assert_close(seen[name].weights(), model.truth[:, [head]])
        assert seen[name].how == "exact"


class WeightsOnly(Base):
    """What is made of its map happens elsewhere."""

    def forward(self, x):
        query, key, _ = self.rows(x)
        self.truth = (query @ key.mT).softmax(-1)
        return self.truth


def test_a_map_whose_values_were_not_found_is_unverified():
    model = WeightsOnly()
    with torch.no_grad(), regard.observe(model) as seen:
        model(drawn())
    site = seen["WeightsOnly"]
    assert site.how == "unverified" and seen.unseen == []
    torch.testing.assert_close(site.weights(), model.truth)


class Routed(nn.Module):
    """A softmax over experts, each of which returns rows of its own."""

    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(HEADS * WIDTH, 4), nn.Parameter(torch.randn(4, 15, 15))

    def forward(self, x):
        outputs = torch.einsum("bnd,edf->bnef", x, self.experts)
        return (self.router(x).softmax(-1)[..., None] * outputs).sum(2)


class Calibrated(nn.Module):
    """A classifier: its probabilities enter a product with the labels."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(HEADS * WIDTH, 11)

    def forward(self, x):
        logits = self.map(x)
        target = torch.zeros_like(logits).scatter(-1, torch.arange(LENGTH)[None, :, None].expand(BATCH, -1, -1), 1)
        return -(target * logits.softmax(-1).log()).sum(-1)


@pytest.mark.parametrize("kind", [Routed, Calibrated])
def test_a_softmax_over_features_is_no_attention(kind):
    attends = nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 11, batch_first=True)
    model = nn.Sequential(attends, kind()).eval()
    with regard.observe(model) as seen:
        model(drawn())
    assert seen.names() == ["0.self_attn"] and seen.unseen == []


class SigmoidAttention(Base):
    def normalize(self, scores):
        return scores.sigmoid()


class ReturnedAttention(Base):
    """A softmax that is never multiplied with anything."""

    def forward(self, x):
        return self.query(x).softmax(1)


class OverHeads(Base):
    """Sums over heads where keys are expected."""

    def forward(self, x):
        weights = self.key(x).unflatten(-1, (HEADS, WIDTH)).softmax(1)
        return torch.einsum("bnhd,bhnd->bnd", weights, self.rows(x)[2])


@pytest.mark.parametrize(
    "kind, why",
    [
        (SigmoidAttention, "names neither a known function nor a softmax"),
        (ReturnedAttention, "its softmax enters no product with values"),
        (OverHeads, "no product sums over the axis of its softmax"),
    ],
)
def test_what_is_not_seen_is_told_with_the_true_reason(kind, why):
    attends = nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 11, batch_first=True)
    model = nn.Sequential(attends, kind()).eval()
    with pytest.warns(PartialView, match=why), regard.observe(model) as seen:
        model(drawn())
    assert seen.names() == ["0.self_attn"] and [part.path for part in seen.unseen] == ["1"]


def test_a_module_whose_recording_fails_is_told(monkeypatch):
    def fails(*_):
        raise KeyError("on purpose")

    model, x = LearnedQueries(), drawn()
    plain = model(x)
    monkeypatch.setattr(OperationTape, "record", fails)
    with pytest.warns(PartialView, match="could not be followed .KeyError"), regard.observe(model) as seen:
        assert torch.equal(model(x), plain)
    assert len(seen) == 0


def test_an_error_of_an_edit_reaches_the_caller(monkeypatch):
    model = InSequential().eval()
    with torch.no_grad(), regard.observe(model) as seen:
        model(drawn())
    monkeypatch.setattr("regard.observation.capture.edits.Silence.mixed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        seen.ablate({"InSequential": [1]}, loss=lambda output: output.sum())
