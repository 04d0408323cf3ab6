"""tagger: every part can be left out, padding changes nothing, characters are read as the formulas say."""

import pytest
import torch

import regard
from regard.nn.parts import loss_terms
from regard_workbench import models
from regard_workbench.models.parts.clue_scores import SCALE
from regard_workbench.models.parts.token_rows import CharacterAttention, CharacterConvolution
from regard_workbench.tasks import Batch, HiddenTokens, Problem, Stream, Tags, TokenRows, Tokens
from regard_workbench.tasks.text.word_clues import CluesSpec
from regard_workbench.tasks.text.word_vectors import WordVectors

WORDS, LETTERS, WIDTH, SHAPES = 23, 17, 7, 11
TAGS = Tags(("O", "B-x", "I-x"))
BOTH = Problem({"words": Tokens(WORDS), "characters": TokenRows(LETTERS, WIDTH)}, TAGS)
ALONE = Problem({"words": Tokens(WORDS)}, TAGS)
SHAPED = Problem({**BOTH.streams, "shapes": Tokens(SHAPES)}, TAGS)


def built(problem=BOTH, **options):
    torch.manual_seed(3)
    return models.build("tagger", problem, **{"dim": 16, "character_dim": 5, **options})


def batch(lengths=(11, 6, 1), problem=BOTH):
    generator = torch.Generator().manual_seed(4)
    longest = max(lengths)
    words = torch.randint(5, WORDS, (len(lengths), longest), generator=generator)
    letters = torch.randint(1, LETTERS, (len(lengths), longest, WIDTH), generator=generator)
    letters[..., 5:] = 0
    keep = torch.arange(longest) < torch.tensor(lengths)[:, None]
    keep = None if bool(keep.all()) else keep
    tags = torch.randint(0, 2, words.shape, generator=generator)
    streams = {"words": Stream(words, keep), "characters": Stream(letters, keep)}
    streams["shapes"] = Stream(words % SHAPES, keep)
    streams = {name: streams[name] for name in problem.streams}
    return Batch(streams, {"targets": Stream(tags, keep)})


def test_the_shape_of_a_word_is_read_beside_its_vector_and_its_characters():
    model, given = built(SHAPED, shape_dim=3).eval(), batch(problem=SHAPED)
    assert model.join.in_features == 16 + 5 + 3
    other = batch(problem=SHAPED)
    other.streams["shapes"].data[0, 0] += 1
    changed = (model(given) != model(other)).any(-1)
    assert changed[0].any() and not changed[1:].any()
    words = built(Problem({"words": Tokens(WORDS), "shapes": Tokens(SHAPES)}, TAGS))
    assert words.join.in_features == 16 + 16, "without characters, too"


def test_hidden_words_are_scored_by_the_vectors_that_words_are_read_with():
    model = built(Problem(SHAPED.streams, HiddenTokens(WORDS, 1)))
    assert model.head.logits.weight is model.embedding.rows.weight


PARTS = [
    {},
    {"characters": "attention"},
    {"characters": "none"},
    {"layers": 0},
    {"cell": "none"},
    {"crf": False},
    {"cell": "gru", "attention": "local(window=3)", "layers": 2},
    {"characters": "none", "layers": 0, "cell": "none", "crf": False},
]


@pytest.mark.parametrize("options", PARTS, ids=str)
def test_each_part_can_be_left_out_and_every_weight_of_the_rest_is_trained(options):
    model, given = built(**options), batch((5, 5))
    outputs = model(given)
    assert outputs.shape == (2, 5, 3)
    total, count = model.loss(outputs, given)
    total.backward()
    assert float(count) == (10 if options.get("crf") is False else 2), "words, or sentences"
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    names = {name.partition(".")[0] for name, _ in model.named_parameters()}
    assert ("characters" in names) == (options.get("characters") != "none")
    assert ("recurrent" in names) == (options.get("cell") != "none")
    assert ("stack" in names) == (options.get("layers") != 0)
    assert hasattr(model.head, "transition") == options.get("crf", True)
    assert all(len(tags) == 5 for tags in model.predict(outputs, given))


@pytest.mark.parametrize("options", PARTS, ids=str)
def test_a_padded_batch_equals_its_sentences(options):
    model, given = built(**options).double().eval(), batch()
    together = model(given)
    for row, length in enumerate((11, 6, 1)):
        streams = {name: Stream(stream.data[row : row + 1, :length]) for name, stream in given.streams.items()}
        assert torch.allclose(model(Batch(streams))[0], together[row, :length], atol=1e-9)


def test_a_problem_without_characters_is_served_by_words_alone():
    model, given = built(ALONE), batch(problem=ALONE)
    assert model(given).shape == (3, 11, 3)
    assert not any("characters" in name for name, _ in model.named_parameters())


def test_the_convolution_is_the_largest_of_all_windows_that_touch_a_letter():
    torch.manual_seed(0)
    layer = CharacterConvolution(TokenRows(LETTERS, 4), 5, letter_dim=2, widths=(2, 3)).double()
    ids = torch.tensor([[[4, 9, 2, 0], [0, 0, 0, 0]]])
    found, expected = layer(ids), []
    for window, width, size in zip(layer.windows, (2, 3), (3, 2), strict=True):
        zeros = torch.zeros(width - 1, 2, dtype=torch.float64)
        rows = torch.cat([zeros, layer.letters.table.weight[[4, 9, 2]], zeros])
        starts = range(len(rows) - width + 1)
        each = torch.stack([(window.weight * rows[at : at + width].T).sum((1, 2)) + window.bias for at in starts])
        assert each.shape == (3 + width - 1, size)
        expected.append(each.amax(0))
    assert torch.allclose(found[0, 0], torch.cat(expected)) and (found[0, 1] == 0).all()


def test_letters_attend_only_to_letters_of_their_word():
    torch.manual_seed(0)
    layer = CharacterAttention(TokenRows(LETTERS, WIDTH), 5, letter_dim=8).double().eval()
    ids = torch.randint(1, LETTERS, (1, 3, WIDTH))
    ids[0, 1, 4:] = 0
    changed = ids.clone()
    changed[0, 0] = 3
    assert torch.allclose(layer(ids)[0, 1:], layer(changed)[0, 1:])
    shorter = CharacterAttention(TokenRows(LETTERS, WIDTH), 5, letter_dim=8).double().eval()
    shorter.load_state_dict(layer.state_dict())
    assert torch.allclose(shorter(ids[:, 1:2, :4])[0, 0], layer(ids)[0, 1])


def test_attention_over_the_words_is_observed():
    model, given = built().eval(), batch()
    with regard.observe(model) as seen:
        model(given)
    (name,) = seen.names()
    weights = seen[name].weights()
    assert weights.shape == (3, 4, 11, 11) and (weights[1, :, :6, 6:] == 0).all()


def test_unknown_ways_to_read_characters_are_refused():
    with pytest.raises(regard.RegardError, match="characters: there is no 'rnn'"):
        built(characters="rnn")
    with pytest.raises(regard.RegardError, match="cell: there is no 'tcn'"):
        built(cell="tcn")


def clued(**options):
    vectors = torch.randn(WORDS, 4, generator=torch.Generator().manual_seed(9))
    vectors[0] = 0
    known = WordVectors(WORDS, width=4, vectors=vectors)
    problem = Problem({"words": Tokens(WORDS), "vectors": known, "clues": CluesSpec(31, 6)}, TAGS)
    model = built(problem, clue_decay=0.25, clue_dropout=0.0, **options)
    torch.nn.init.normal_(model.clues.table.weight[1:])  # id 0 is padding, whose weights stay 0
    torch.nn.init.normal_(model.clues.around.weight)
    words = torch.tensor([[7, 9, 11, 5], [6, 8, 0, 0]])
    clues = torch.randint(1, 31, (2, 4, 6), generator=torch.Generator().manual_seed(8))
    keep = words != 0
    clues[1, 2:] = 0
    clues[:, :, 5] = 0
    streams = {"words": Stream(words, keep), "vectors": Stream(words, keep), "clues": Stream(clues, keep)}
    return model, Batch(streams, {"targets": Stream(torch.zeros(2, 4).long(), keep)})


@torch.no_grad()
def test_clues_add_a_linear_score_of_clues_and_of_the_vectors_around_a_word():
    model, given = clued()
    model.eval()
    both = model(given)
    own, model.clues = model.clues, None
    rest = model(given)
    table, around = own.table.weight, own.around.weight
    vectors = model.given["vectors"].rows.table
    for example, words in enumerate(([7, 9, 11, 5], [6, 8])):
        for place, _word in enumerate(words):
            score = rest[example, place].clone()
            for clue in given.streams["clues"].data[example, place].tolist():
                if clue:
                    score += table[clue]
            near = [words[at] if 0 <= at < len(words) else 0 for at in (place - 1, place, place + 1)]
            score += around @ (SCALE * torch.cat([vectors[one] for one in near]))
            assert torch.allclose(both[example, place], score, atol=1e-5)


def test_the_weights_of_clues_are_kept_small_by_half_of_their_squares_for_each_sentence():
    model, given = clued()
    with loss_terms.collecting() as offered:
        model.train()(given)
    squares = model.clues.table.weight.square().sum() + model.clues.around.weight.square().sum()
    assert offered[0](torch.zeros(1), torch.ones(1)).item() == pytest.approx(2 * 0.5 * 0.25 * squares.item())
    with loss_terms.collecting() as offered:
        model.eval()(given)
    assert offered == []


def test_dropped_clues_leave_the_mean_score_as_it_is():
    model, given = clued()
    model.clues.dropout, model.clues.around = 0.5, None
    clues = given.streams["clues"].data
    torch.manual_seed(0)
    with torch.no_grad():
        mean = torch.stack([model.clues.train()(clues, None) for _ in range(3000)]).mean(0)
        assert torch.allclose(mean, model.clues.eval()(clues, None), atol=0.25)


def test_a_tagger_may_leave_clues_out():
    model = built(Problem({"words": Tokens(WORDS), "clues": CluesSpec(31, 6)}, TAGS), clues=False)
    assert model.clues is None
