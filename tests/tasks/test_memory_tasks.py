"""copy and recall: layouts by hand, costs by hand."""

import math

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard_workbench import tasks
from regard_workbench.tasks.generated.draws import Draws
from tests.tasks.stand_ins import Fixed, judged

RANDOM = torch.Generator()


def test_a_copy_is_mark_vectors_mark_blanks():
    task = tasks.build("copy", min_length=3, max_length=3, bits=5, seed=11)
    draws = Draws("copy", 11, "train", 7)
    draws.below(1)  # the length was drawn first
    vectors = draws.bits(3, 5)
    tape = task.examples("train")[7]
    expected = np.zeros((8, 7))
    expected[0, 5] = 1
    expected[1:4, :5] = vectors
    expected[4, 6] = 1
    assert np.array_equal(tape.inputs, expected)
    assert np.array_equal(tape.targets[5:], vectors) and not tape.targets[:5].any()
    batch = task.collate([tape], RANDOM)
    assert batch.keep is None and batch.target_keep.tolist() == [[False] * 5 + [True] * 3]
    assert task.problem.inputs.width == 7 and task.problem.answer.width == 5 and task.problem.inputs.length == 8


def test_lengths_of_copies_cover_their_range_and_the_test_may_be_longer():
    task = tasks.build("copy", min_length=2, max_length=5, bits=3, test_length=13)
    lengths = [(task.length(task.examples("train")[n]) - 2) // 2 for n in range(200)]
    assert set(lengths) == {2, 3, 4, 5}
    assert {task.length(tape) for tape in task.examples("test")} == {28}
    assert task.problem.inputs.length == 28
    assert max(task.length(tape) for tape in task.examples("validation")) == 12


def test_recall_shows_items_asks_for_one_and_wants_the_next():
    task = tasks.build("recall", min_items=2, max_items=5, item_length=3, bits=2, seed=5)
    seen = set()
    for number in range(60):
        tape = task.examples("train")[number]
        steps = tape.inputs.astype(int)
        items, at = [], 0
        while steps[at, 2]:  # an item mark, then three vectors
            assert not steps[at, [0, 1, 3]].any() and not steps[at + 1 : at + 4, 2:].any()
            items.append(steps[at + 1 : at + 4, :2].tolist())
            at += 4
        assert steps[at].tolist() == [0, 0, 0, 1] == steps[at + 4].tolist()
        asked = steps[at + 1 : at + 4, :2].tolist()
        assert not steps[at + 5 :].any() and len(steps) == at + 8 and tape.answer == at + 5
        assert items.count(asked) == 1, "one right answer"
        assert tape.targets[tape.answer :].tolist() == items[items.index(asked) + 1]
        assert not tape.targets[: tape.answer].any()
        seen.add((len(items), items.index(asked)))
        assert len(steps) <= task.problem.inputs.length
    assert {count for count, _ in seen} == {2, 3, 4, 5} and (5, 3) in seen and (2, 0) in seen


@pytest.mark.parametrize("name", ["copy", "recall"])
def test_sequences_do_not_depend_on_order_and_splits_differ(name):
    one, two = tasks.build(name, seed=3), tasks.build(name, seed=3)
    late = [one.examples("train")[n].inputs.tolist() for n in (999_983, 5, 17)]
    assert late == [two.examples("train")[n].inputs.tolist() for n in (999_983, 5, 17)]
    firsts = [one.examples(split)[0].inputs.tolist() for split in ("train", "validation", "test")]
    assert firsts[0] != firsts[1] != firsts[2]
    assert tasks.build(name, seed=4).examples("train")[5].inputs.tolist() != late[1]


@pytest.mark.parametrize("name", ["copy", "recall"])
def test_the_cost_of_a_sequence_is_counted_in_bits(name):
    task = tasks.build(name)
    tapes = list(task.examples("validation")[:7])
    batch = task.collate(tapes, RANDOM)
    torch.manual_seed(2)
    logits = torch.randn(batch.targets.shape)
    found = judged(task, Fixed(lambda b: logits), batch)
    bits, wrong, right = 0.0, 0, 0
    for row, tape in enumerate(tapes):
        mistakes = 0
        for step in range(tape.answer, len(tape.inputs)):
            for channel, bit in enumerate(tape.targets[step]):
                p = 1 / (1 + math.exp(-logits[row, step, channel].item()))
                bits -= math.log2(p if bit else 1 - p)
                mistakes += (p > 0.5) != bool(bit)
        wrong, right = wrong + mistakes, right + (mistakes == 0)
    assert found["bits_per_sequence"] == pytest.approx(bits / 7, rel=1e-5)
    assert found["wrong_bits"] == wrong / 7 and found["exact_match"] == right / 7
    # Without an answer every bit costs one bit.
    blank = judged(task, Fixed(lambda b: torch.zeros(b.targets.shape)), batch)
    assert blank["bits_per_sequence"] == pytest.approx(
        sum(int((len(t.inputs) - t.answer) * task.bits) for t in tapes) / 7
    )
    perfect = judged(task, Fixed(lambda b: (b.targets * 2 - 1) * 50), batch)
    assert perfect["bits_per_sequence"] < 1e-9 and perfect["exact_match"] == 1.0


def test_the_metric_is_the_cost_and_less_is_better():
    metric = tasks.TASKS["copy"].metric
    assert metric.name == "bits_per_sequence" and not metric.higher_is_better


def test_wrong_sizes_are_refused():
    with pytest.raises(BadValue, match="max_length: expected at least min_length=5, got 3"):
        tasks.build("copy", min_length=5, max_length=3)
    with pytest.raises(BadValue, match="bits: expected a whole number of at least 1"):
        tasks.build("copy", bits=0)
    with pytest.raises(BadValue, match="bits: 6 different items need more"):
        tasks.build("recall", bits=1, item_length=2)
    with pytest.raises(BadValue, match=r"option of copy: there is no 'lenght'"):
        tasks.build("copy", lenght=3)
