"""A model whose heads are built by hand, observed while it runs on torch's fused attention, and read by the analysis.

Positions and tokens are unit vectors, so that what each head does is written in its matrices: one finds the previous
token and notes it, and a head of the layer above uses the note to find what followed the same token before: induction.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.observation.analysis.clustering import cluster
from regard.observation.analysis.difference import difference
from regard.observation.analysis.patterns import recognise_all
from regard.observation.analysis.rollout import rollout
from regard.observation.plotting import image, plot

LENGTH, WORDS, SHARP = 31, 17, 30.0
SILENT = 0.0  # a query of zeros attends uniformly


class Layer(nn.Module):
    """Heads from pairs of maps (queries, keys) of the stream; head 0 writes the tokens it finds into the note."""

    def __init__(self, heads):
        super().__init__()
        self.heads = heads

    def forward(self, stream):
        query = torch.stack([queries(stream) for queries, _ in self.heads], 1)
        key = torch.stack([keys(stream) for _, keys in self.heads], 1)
        words = stream[..., :WORDS]
        value = words[:, None].expand(-1, len(self.heads), -1, -1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return torch.cat([stream[..., : WORDS + LENGTH], mixed[:, 0]], -1)


def wide(part):
    """All queries and keys of one width."""
    return F.pad(part, (0, WORDS + LENGTH - part.shape[-1]))


def words(stream):
    return wide(stream[..., :WORDS])


def places(stream, shift=0):
    """Unit vectors of positions, moved on by `shift`."""
    return wide(stream[..., WORDS : WORDS + LENGTH].roll(shift, -1))


def note(stream):
    return wide(stream[..., WORDS + LENGTH :])


def first(stream):
    """1 at the first position."""
    return wide(stream[..., WORDS : WORDS + 1])


def always(stream):
    return wide(torch.ones_like(stream[..., :1]))


def words_and_places(stream):
    return stream[..., : WORDS + LENGTH]


def others(stream):
    """Matches the same word, but not the same position."""
    return torch.cat([stream[..., :WORDS], -2 * stream[..., WORDS : WORDS + LENGTH]], -1)


class Model(nn.Module):
    def __init__(self, sharp=SHARP):
        super().__init__()
        self.below = Layer(
            [
                (lambda x: sharp * places(x), lambda x: places(x, 1)),
                (lambda x: sharp * places(x), places),
                (lambda x: sharp * always(x), first),
            ]
        )
        self.above = Layer(
            [
                (lambda x: sharp * words(x), note),
                (lambda x: sharp * others(x), words_and_places),
                (lambda x: SILENT * words(x), words),
            ]
        )

    def forward(self, tokens):
        stream = torch.cat([F.one_hot(tokens, WORDS), torch.eye(LENGTH).expand(len(tokens), -1, -1)], -1)
        stream = torch.cat([stream, torch.zeros(*tokens.shape, WORDS)], -1)
        return self.above(self.below(stream))


@pytest.fixture
def tokens():
    """The same twelve words in the same order, again and again."""
    return (torch.arange(LENGTH) * 5 % 12)[None]


@pytest.fixture
def seen(tokens):
    model = Model()
    with regard.observe(model) as found:
        model(tokens)
    return found


def test_built_heads_are_recognised(seen, tokens):
    facts = recognise_all(seen, tokens[0])
    assert [(one.site, one.head, one.pattern) for one in facts] == [
        ("below", 0, "previous token"),
        ("below", 1, "diagonal"),
        ("below", 2, "first token"),
        ("above", 0, "induction"),
        ("above", 1, "duplicate token"),
        ("above", 2, "uniform"),
    ]
    by_name = {one.pattern: one for one in facts}
    assert by_name["previous token"].scores["previous token"] > 0.999
    # The first position saw only itself, so its note is its own word, which misleads the two later rows of that word.
    assert 0.95 < by_name["induction"].scores["induction"] < 0.96
    assert by_name["duplicate token"].scores["duplicate token"] > 0.99


def test_the_note_that_induction_needs_was_written_by_the_head_below(seen, tokens):
    """Through both layers, what a position knows comes from where the word stood before and from the word after it."""
    row = LENGTH - 1
    weights = seen["above"].weights([row], [0])[0, 0, 0]
    earlier = [j for j in range(row) if tokens[0, j] == tokens[0, row]]
    assert weights[[j + 1 for j in earlier]].sum() > 0.99
    assert torch.allclose(rollout(seen, [row]).sum(), torch.tensor(1.0, dtype=torch.float64))


def test_two_models_differ_only_in_the_heads_that_were_changed(seen, tokens):
    blunt = Model()
    blunt.above = Model(sharp=1.0).above
    with regard.observe(blunt) as other:
        blunt(tokens)
    found = difference(seen, other)
    assert [site.name for site in found.sites] == ["below", "above"]
    assert found.sites[0].mean == pytest.approx(0, abs=1e-9)
    assert {(name, head) for name, head, value in found.ranked() if value > 1e-6} == {("above", 0), ("above", 1)}


def test_an_observation_can_be_clustered_and_plotted(seen, tokens):
    groups = cluster(recognise_all(seen, tokens[0]))
    assert sorted(groups.order) == list(range(6))
    figure = plot(seen, "above", tokens=[str(word) for word in tokens[0].tolist()])
    drawn = [frame.images[0].get_array() for frame in figure.axes if frame.images]
    assert torch.equal(torch.as_tensor(drawn[0].data), seen["above"].weights()[0, 0])
    assert max(image(seen["below"]).size) <= 512
