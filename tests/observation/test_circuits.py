"""Circuits against a model whose weights were written by hand, so that it is known what each head does."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import RegardError
from tests.observation import peers

WORDS, LENGTH = 41, 23
TOKEN, PLACE = slice(0, WORDS), slice(WORDS, WORDS + LENGTH)
BEFORE = slice(WORDS + LENGTH, 2 * WORDS + LENGTH)  # the token before this one
GUESS, UNUSED = (slice(start, start + WORDS) for start in (2 * WORDS + LENGTH, 3 * WORDS + LENGTH))
WIDTH = 4 * WORDS + LENGTH


class Layer(nn.Module):
    """Two heads, each as wide as the rows, with matrices for queries, keys and values that are set by hand."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Parameter(torch.zeros(2, WIDTH, WIDTH)) for _ in range(3))

    def forward(self, x):
        query, key, value = (torch.einsum("bnd,hde->bhne", x, one) for one in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
        return x + mixed.sum(1)


class ByHand(nn.Module):
    """Layer 0: head 0 copies the token before into `BEFORE`; head 1 has the same map and writes nothing.

    Layer 1: head 0 looks for tokens whose `BEFORE` is the current one and writes them as its guess (induction); head 1
    looks at earlier copies of the current token and writes where nothing reads.
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        eye = torch.eye(WORDS)
        with torch.no_grad():
            first, second = self.layers
            for head in range(2):
                first.query[head][PLACE, PLACE] = 40 * torch.eye(LENGTH)
                first.key[head][PLACE, PLACE] = torch.diag(torch.ones(LENGTH - 1), 1)  # key j answers to query j + 1
            first.value[0][TOKEN, BEFORE] = eye
            second.query[0][TOKEN, TOKEN] = 40 * eye
            second.key[0][BEFORE, TOKEN] = eye
            second.value[0][TOKEN, GUESS] = eye
            second.query[1][TOKEN, TOKEN] = 40 * eye
            second.key[1][TOKEN, TOKEN] = eye
            second.key[1][PLACE, TOKEN] = 0
            second.value[1][TOKEN, UNUSED] = eye

    def forward(self, ids):
        rows = torch.zeros(*ids.shape, WIDTH)
        rows[..., TOKEN] = F.one_hot(ids, WORDS).float()
        rows[:, :, PLACE] = torch.eye(LENGTH)[: ids.shape[1]]
        for layer in self.layers:
            rows = layer(rows)
        return 12 * rows[..., GUESS]


def observed(model, *given, **named):
    with regard.observe(model) as seen, torch.no_grad():
        model(*given, **named)
    return seen


def test_the_heads_that_were_built_are_named_and_those_that_only_look_alike_are_not():
    found = observed(ByHand().eval(), torch.arange(7)[None]).circuits(vocabulary=WORDS, length=11, examples=3)
    assert {(one.site, one.head): one.name for one in found.named()} == {
        ("layers.0", 0): "previous token",
        ("layers.1", 0): "induction",
    }
    heads = {(one.site, one.head): one for one in found.heads}
    idle, copies = heads["layers.0", 1], heads["layers.1", 1]
    assert idle.attention["previous token"] > 0.95 and idle.influence["previous token"] == 0 and idle.effect[0] == 0
    assert heads["layers.0", 0].influence["previous token"] > 0.95
    assert copies.effect == (0, 0, 0) and not copies.name
    assert found.value < 0.1 < heads["layers.1", 0].effect[1]  # the repetition is known, and is not without the head
    assert heads["layers.1", 0].patched == pytest.approx(1, abs=0.05)
    assert json.dumps(found.to_json(), allow_nan=False) and "induction" in repr(found)


def test_a_direct_path_tells_the_head_that_writes_from_the_head_that_helps():
    text = torch.tensor([[3, 9, 5, 7, 3]])
    other = torch.tensor([[3, 8, 5, 7, 3]])
    seen = observed(ByHand().eval(), text)
    whole = seen.patch(text, other, answer=9, other=8)
    assert whole.recovered[1, 0].item() == pytest.approx(1, abs=1e-3)
    paths = seen.patch_paths(text, other, answer=9, other=8)
    assert paths.recovered[1, 0].item() == pytest.approx(1, abs=1e-3)
    assert paths.recovered[0].abs().max().item() < 1e-3
    moved, changed = (torch.tensor([[3, 9, 5, 7, 3]]), torch.tensor([[4, 9, 5, 7, 3]]))  # now only the key tells
    keys = seen.patch_paths(
        moved, changed, receivers={"layers.1": [0]}, through="key", answer=9, other=8, measure="logit"
    )
    assert keys.recovered[0, 0].item() == pytest.approx(1, abs=1e-3)
    queries = seen.patch_paths(moved, changed, receivers={"layers.1": [0]}, through="query", answer=9, other=8)
    assert queries.recovered[0].abs().max().item() < 1e-3


def test_the_head_that_copies_the_answer_is_the_name_mover():
    text, other = torch.tensor([[7, 3, 9, 5, 3]]), torch.tensor([[7, 3, 8, 5, 3]])
    found = observed(Headed().eval(), text).name_movers(text, other, answer=9, other=8)
    movers = [(one.site, one.head) for one in found if one.moves]
    assert movers == [("inner.layers.1", 0)]
    assert found[0].attention > 0.95 > found[0].chance and found[0].to_json()["moves"]
    assert found[0].written == pytest.approx(12, rel=1e-3)
    with pytest.raises(RegardError, match="nowhere in clean"):
        observed(Headed().eval(), text).name_movers(text, other, answer=11, other=8)


class Headed(nn.Module):
    """The same model with its guess read by a linear head."""

    def __init__(self):
        super().__init__()
        self.inner = ByHand()
        self.head = nn.Linear(WORDS, WORDS, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(torch.eye(WORDS))

    def forward(self, ids):
        return self.head(self.inner(ids))


def test_models_without_tokens_to_predict_are_measured_by_how_far_their_output_moves():
    pytest.importorskip("transformers")
    model = peers.small("bert")
    found = observed(model, input_ids=peers.ids(5, 1), attention_mask=torch.ones(1, 5, dtype=torch.long)).circuits(
        vocabulary=range(3, 90), prefix=[1], suffix=[2], length=5, examples=2
    )
    assert len(found.heads) == 6 and "median head" in found.measured
    assert all(one.patched is None for one in found.heads)


def test_texts_take_the_place_of_random_tokens():
    model = ByHand().eval()
    texts = torch.randint(0, 20, (3, 13))
    found = observed(model, texts).circuits(vocabulary=WORDS, texts=texts)
    expected = F.cross_entropy(model(texts)[:, :-1].flatten(0, 1), texts[:, 1:].flatten()).item()
    assert found.value == pytest.approx(expected, rel=1e-4) and found.measured == "loss of the texts"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"vocabulary": 9, "length": 11}, "vocabulary"),
        ({"vocabulary": "abc"}, "vocabulary"),
        ({"vocabulary": WORDS, "examples": 1}, "examples"),
        ({"vocabulary": WORDS, "length": 2}, "length"),
        ({"vocabulary": WORDS, "texts": torch.zeros(1, 5)}, "texts"),
    ],
)
def test_wrong_arguments_of_circuits_are_refused(options, words):
    with pytest.raises(RegardError, match=words):
        observed(ByHand().eval(), torch.arange(7)[None]).circuits(**options)
