"""Stream embeddings: word dropout, and weights that embeddings and heads share."""

import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models
from regard_workbench.models.parts.embedding import StreamEmbedding
from regard_workbench.tasks.answers import NextToken, Writes
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens, Vectors

WORDS, DIM, N = 101, 5, 67
TRANSLATE = Problem.of(Tokens(WORDS, length=N), Writes(WORDS, 7, start=1, end=2))
LANGUAGE = Problem.of(Tokens(WORDS, length=N), NextToken(WORDS))


def test_word_dropout_drops_a_word_wherever_it_stands_and_scales_the_others():
    torch.manual_seed(0)
    embedding = StreamEmbedding(Tokens(WORDS), DIM, positions="none", word_dropout=0.3)
    ids = torch.randint(WORDS, (3, N))
    plain = embedding.eval()(ids)
    rows = embedding.train()(ids)
    dropped = (rows == 0).all(-1)
    torch.testing.assert_close(rows[~dropped], plain[~dropped] / 0.7)
    for word in ids.unique():
        assert len(set(dropped[ids == word].tolist())) == 1, "all places of a word share one fate"
    assert 0 < dropped.float().mean() < 1
    other = (embedding(ids) == 0).all(-1)
    assert not torch.equal(other, dropped), "each step draws anew"


def test_word_dropout_drops_its_share_of_the_vocabulary_and_keeps_the_mean():
    torch.manual_seed(1)
    embedding = StreamEmbedding(Tokens(WORDS), DIM, positions="none", word_dropout=0.3)
    every = torch.arange(WORDS)[None]
    drawn = torch.stack([embedding(every)[0].detach() for _ in range(1500)])
    assert (drawn == 0).all(-1).float().mean() == pytest.approx(0.3, abs=0.01)
    torch.testing.assert_close(drawn.mean(0), embedding.eval()(every)[0].detach(), rtol=0.12, atol=0.02)


def test_word_dropout_of_zero_draws_no_random_numbers_and_numbers_have_no_words():
    ids = torch.arange(WORDS)[None]
    embedding = StreamEmbedding(Tokens(WORDS), DIM, positions="none")
    before = torch.get_rng_state()
    embedding(ids)
    assert torch.equal(torch.get_rng_state(), before)
    vectors = StreamEmbedding(Vectors(3), DIM, positions="none", word_dropout=0.5)
    given = torch.randn(2, 9, 3)
    assert torch.equal(vectors.train()(given), vectors.eval()(given))


@pytest.mark.parametrize("given", [-0.1, 1.0])
def test_a_word_dropout_that_is_no_share_is_refused(given):
    with pytest.raises(BadValue, match=r"word_dropout: expected a (fraction|probability) from 0"):
        models.build("decoder", LANGUAGE, word_dropout=given)


@pytest.mark.parametrize("name", ["decoder", "transformer-xl", "lstm-attention"])
def test_models_take_word_dropout_and_are_unchanged_by_it_in_evaluation(name):
    torch.manual_seed(2)
    model = models.build(f"{name}(dim=8, word_dropout=0.5, dropout=0.0)", LANGUAGE)
    batch = Batch.of(torch.randint(WORDS, (2, 13)))
    trained = model(batch)
    evaluated = model.eval()(batch)
    assert not torch.equal(trained, evaluated)
    model.embedding.word_dropout = 0.0
    assert torch.equal(model.train()(batch), evaluated)


def test_an_lstm_may_share_its_embedding_with_its_head():
    tied = models.build("lstm-attention(dim=8, tied=true)", LANGUAGE)
    assert tied.head.logits.weight is tied.embedding.rows.weight
    plain = models.build("lstm-attention(dim=8)", LANGUAGE)
    assert plain.head.logits.weight is not plain.embedding.rows.weight


def test_a_transformer_may_embed_both_sides_and_answer_with_the_same_weights():
    model = models.build("transformer(dim=8, layers=1, tied_source=true)", TRANSLATE)
    assert model.embedding.rows.weight is model.target_embedding.rows.weight is model.head.logits.weight
    plain = models.build("transformer(dim=8, layers=1)", TRANSLATE)
    count = sum(p.numel() for p in plain.parameters()) - sum(p.numel() for p in model.parameters())
    assert count == WORDS * 8
    other = Problem.of(Tokens(WORDS + 1, length=N), TRANSLATE.answer)
    with pytest.raises(BadValue, match="tied_source: source and target need one vocabulary"):
        models.build("transformer(dim=8, layers=1, tied_source=true)", other)
