"""The conditional random field against an enumeration of all sequences; entities against conlleval's rules by hand."""

import itertools
import math

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.tasks import Answered, Batch, Tags
from regard_workbench.tasks.measures.entities import F1, as_bio, counted, entities, f1, wrong_begins

TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


def random_field(seed=0):
    torch.manual_seed(seed)
    head = Tags(TAGS).head(7).double()
    for weight in (head.transition, head.first, head.last):
        torch.nn.init.normal_(weight)
    return head


def possible(tags):
    """BIO by hand: I-t stands only after B-t or I-t."""
    return all(
        TAGS[after][0] != "I" or (before is not None and TAGS[before][1:] == TAGS[after][1:] and TAGS[before] != "O")
        for before, after in itertools.pairwise((None, *tags))
    )


def score_by_hand(head, scores, tags):
    total = head.first[tags[0]] + head.last[tags[-1]]
    total = total + sum(scores[t, tag] for t, tag in enumerate(tags))
    return float((total + sum(head.transition[a, b] for a, b in itertools.pairwise(tags))).detach())


def a_batch(keep, gold):
    return Batch.of(torch.zeros(gold.shape), keep, gold, keep)


def test_the_score_of_outside_is_raised_in_training_alone():
    """Of two tags with equal scores, training sees O ahead by 1.5, so the loss of x is log(1 + e^1.5)."""
    head = Tags(("O", "B-x"), outside=1.5).head(3).double()
    rows, keep = torch.zeros(1, 1, 3, dtype=torch.float64), torch.ones(1, 1, dtype=torch.bool)
    batch = a_batch(keep, torch.tensor([[1]]))
    trained, _ = head.loss(head.train()(rows, batch), batch)
    judged, _ = head.loss(head.eval()(rows, batch), batch)
    assert float(trained.detach()) == pytest.approx(math.log(1 + math.exp(1.5)), rel=1e-6)
    assert float(judged.detach()) == pytest.approx(math.log(2), rel=1e-6)
    assert "raised" not in head.state_dict(), "runs made without it are read as before"


def test_loss_and_best_tags_are_those_of_all_sequences_written_out():
    head, lengths = random_field(), (5, 3, 1)
    rows = torch.randn(3, 5, 7, dtype=torch.float64)
    gold = torch.tensor([[1, 2, 0, 3, 4], [0, 3, 3, 0, 0], [1, 0, 0, 0, 0]])
    keep = torch.arange(5) < torch.tensor(lengths)[:, None]
    batch = a_batch(keep, gold)
    scores = head(rows, batch)
    expected, best = 0.0, []
    for row, length in enumerate(lengths):
        paths = {
            tags: score_by_hand(head, scores[row], tags)
            for tags in itertools.product(range(5), repeat=length)
            if possible(tags)
        }
        normalizer = torch.tensor(list(paths.values()), dtype=torch.float64).logsumexp(0).item()
        expected += normalizer - paths[tuple(gold[row, :length].tolist())]
        best.append(list(max(paths, key=paths.get)))
    total, count = head.loss(scores, batch)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5) and float(count) == 3
    assert head.predict(scores, batch) == best


def test_probabilities_of_all_sequences_sum_to_one():
    head, scores = random_field(1), torch.randn(1, 4, 5, dtype=torch.float64)
    keep = torch.ones(1, 4, dtype=torch.bool)
    logs = [
        -float(head.loss(scores, a_batch(keep, torch.tensor([tags])))[0].detach())
        for tags in itertools.product(range(5), repeat=4)
        if possible(tags)
    ]
    assert torch.tensor(logs).exp().sum().item() == pytest.approx(1.0, rel=1e-4)


def test_a_sequence_that_breaks_bio_is_never_predicted():
    head = random_field(2)
    scores = torch.zeros(2, 6, 5)
    scores[..., 2] = 9.0  # every word alone would be I-x
    scores[1, ::2, 4] = 11.0
    for tags in head.predict(scores, a_batch(None, torch.zeros(2, 6, dtype=torch.long))):
        assert possible(tags)


def test_padding_changes_neither_loss_nor_gradients_nor_tags():
    head, scores = random_field(3), torch.randn(1, 4, 5, dtype=torch.float64, requires_grad=True)
    gold = torch.tensor([[0, 1, 2, 0]])
    alone = head.loss(scores, a_batch(None, gold))[0]
    slope = torch.autograd.grad(alone, [scores, head.transition, head.last])
    longer = torch.cat([scores, torch.full((1, 3, 5), 50.0, dtype=torch.float64)], 1)
    keep = torch.tensor([[True] * 4 + [False] * 3])
    batch = a_batch(keep, torch.cat([gold, torch.full((1, 3), 3)], 1))
    padded = head.loss(longer, batch)[0]
    assert float(padded.detach()) == pytest.approx(float(alone.detach()))
    for one, other in zip(slope, torch.autograd.grad(padded, [scores, head.transition, head.last]), strict=True):
        assert torch.allclose(one, other)
    assert head.predict(longer, batch) == head.predict(scores, a_batch(None, gold))


def test_positions_that_do_not_count_may_stand_anywhere_and_neighbours_are_those_that_count():
    """Further pieces of a word between the first ones: as if they were not there, in loss, gradients and tags."""
    head = random_field(5)
    places = [[1, 2, 5], [0, 4, 6]]
    scores = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    gold = torch.tensor([[1, 2, 0], [0, 3, 4]])
    keep, wide = torch.zeros(2, 7, dtype=torch.bool), torch.full((2, 7), 3)
    for row, some in enumerate(places):
        keep[row, some], wide[row, some] = True, gold[row]
    found, count = head.loss(scores, Batch.of(torch.zeros(2, 7), None, wide, keep))
    alone = torch.stack([scores[row, some] for row, some in enumerate(places)])
    wanted = head.loss(alone, a_batch(None, gold))[0]
    assert float(found.detach()) == pytest.approx(float(wanted.detach())) and float(count) == 2
    for one, other in zip(
        torch.autograd.grad(found, [scores, head.transition], retain_graph=True),
        torch.autograd.grad(wanted, [scores, head.transition]),
        strict=True,
    ):
        assert torch.allclose(one, other)
    asked = Batch.of(torch.zeros(2, 7), None, asked=tuple(map(tuple, places)))
    assert head.predict(scores, asked) == head.predict(alone, a_batch(None, gold))


def test_no_sentence_and_no_word_are_no_loss():
    head = random_field(4)
    for shape in ((0, 3), (2, 0)):
        gold = torch.zeros(shape, dtype=torch.long)
        total, count = head.loss(torch.zeros(*shape, 5), a_batch(None, gold))
        assert float(total.detach()) == 0.0 and float(count) == 0.0
        assert head.predict(torch.zeros(*shape, 5), a_batch(None, gold)) == [[]] * shape[0]


def test_smoothing_is_refused_with_what_to_do():
    head = random_field()
    with pytest.raises(BadValue, match=r"smoothing: .* no classes to smooth, got 0.1.*crf=false"):
        head.loss(torch.zeros(1, 2, 5), a_batch(None, torch.zeros(1, 2, dtype=torch.long)), 0.1)


# Each case worked out by hand from the script's rules (startOfChunk and endOfChunk of conlleval).
CASES = [
    ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
    ("I-PER I-PER O I-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),  # IOB1
    ("I-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),  # IOB1: a second person directly after the first
    ("B-PER B-PER", [("PER", 0, 1), ("PER", 1, 2)]),
    ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),  # another type begins another entity
    ("O I-ORG O O", [("ORG", 1, 2)]),
    ("B-ORG I-PER B-PER O I-PER", [("ORG", 0, 1), ("PER", 1, 2), ("PER", 2, 3), ("PER", 4, 5)]),
    ("O O", []),
    ("", []),
]


@pytest.mark.parametrize(("tags", "expected"), CASES)
def test_entities_are_those_of_conlleval(tags, expected):
    assert entities(tags.split()) == expected
    assert entities(as_bio(tags.split())) == expected
    assert wrong_begins(as_bio(tags.split()), "bio") == []


def test_iob1_and_bio_name_the_first_tag_that_breaks_them():
    assert wrong_begins(["O", "I-PER"], "bio") == [1]
    assert wrong_begins(["B-PER", "I-LOC"], "bio") == [1]
    assert wrong_begins(["I-PER", "B-PER", "O"], "iob1") == []
    assert wrong_begins(["O", "B-PER"], "iob1") == [1]
    assert wrong_begins(["I-LOC", "B-PER"], "iob1") == [1]


def test_f1_is_that_of_a_table_counted_by_hand():
    """True: PER 0–2, LOC 3–4, ORG 5–7. Guessed: PER 0–2 (right), LOC 3–5 (too long), PER 5–7 (wrong type), PER 8–9."""
    true = ["B-PER", "I-PER", "O", "B-LOC", "O", "B-ORG", "I-ORG", "O", "O"]
    guessed = ["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "B-PER", "I-PER", "O", "B-PER"]
    found = counted(true, guessed)
    assert (found["right"], found["guessed"], found["true"]) == (1, 4, 3)
    assert (found["right PER"], found["guessed PER"], found["true PER"]) == (1, 3, 1)
    assert f1(found) == pytest.approx(2 / 7)
    assert f1(found, "PER") == pytest.approx(2 * 1 / (3 + 1)) and f1(found, "ORG") == 0.0


class Says:
    def __init__(self, *tags):
        self.tags = tags

    def __call__(self, batch):
        return None

    def predict(self, outputs, batch):
        return list(self.tags)


def test_the_metric_merges_over_batches_and_leaves_padding_out():
    batches = []
    for true in (("B-x", "I-x", "O"), ("O", "B-y")):
        notes = {"tags": (true,), "names": (TAGS,)}
        batches.append(Batch.of(torch.zeros(1, len(true)), **notes))
    # The second prediction goes on behind the sentence, as a model without a field gives it for padding.
    states = [F1.of(Answered(Says([1, 2, 0]), batches[0])), F1.of(Answered(Says([1, 3, 1, 2]), batches[1]))]
    merged = F1.merge(states)
    assert (merged["right"], merged["guessed"], merged["true"]) == (2, 3, 2)
    assert F1.value(merged) == pytest.approx(4 / 5) and F1.count(merged) == 2


def test_f1_of_nothing_is_zero():
    assert F1.value({"right": 0, "guessed": 0, "true": 0}) == 0.0
