"""Batches gathered several at a time: the same bits as collated one by one, in any order, from any position."""

import pytest
import torch

from regard_workbench import tasks
from regard_workbench.tasks.digits import Digits
from regard_workbench.training import data as data_module
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.data import TrainingData, generator, seed_for

KINDS = ["language(context=7)", "language(context=11, level=word)", "digits", "digits(order=pixels)"]


def training_data(task, batch_size=13, stride=1, seed=3, **changes):
    config = complete({"task": task, "batch_size": batch_size, "seed": seed, "device": "cpu", **changes})
    made = tasks.build(task)
    return TrainingData(made, None, config, stride)


def one_by_one(data, index):
    """Batch `index` by the plain way: each example made, and all collated."""
    chosen = data.order[index]
    examples = [data.examples[number] for number in chosen]
    return tuple(chosen), data.task.collate(examples, generator(data.seed, "batch", index))


def same(batch, expected):
    index, plain = expected
    found, wanted = batch.tensors(), plain.tensors()
    assert batch.index == index and list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and found[name].is_contiguous()
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("task", KINDS)
@pytest.mark.parametrize("stride", [1, 3])
def test_gathered_batches_equal_collated_ones(task, stride):
    data, plain = training_data(task, stride=stride), training_data(task)
    start = data.order.per_epoch - 19  # beyond the smaller last batch of an epoch, and the ends of the text
    for index in range(start, start + 70 * stride, stride):
        same(data.batch(index), one_by_one(plain, index))


def test_every_window_of_a_text_is_gathered_as_it_is_drawn():
    data, plain = training_data("language(context=101)", 29), training_data("language(context=101)", 29)
    ends = 0
    for index in range(2 * data.order.per_epoch):
        ends += not data.examples.narrow.isdisjoint(data.order[index])
        same(data.batch(index), one_by_one(plain, index))
    assert ends >= 2  # the first and the last window may begin at fewer places


@pytest.mark.parametrize("task", ["language(context=7)", "digits"])
def test_batches_asked_for_in_any_order_are_the_same(task):
    data, plain = training_data(task), training_data(task)
    for index in (5, 6, 7, 40, 41, 3, 8, 9, 9, 10, 42):
        same(data.batch(index), one_by_one(plain, index))


def test_a_batch_that_was_gathered_does_not_change_later():
    data = training_data("language(context=7)")
    early = [data.batch(index) for index in range(5)]
    kept = [batch.inputs.clone() for batch in early]
    for index in range(5, 60):
        data.batch(index)
    assert all(map(torch.equal, kept, [batch.inputs for batch in early]))


def test_large_batches_are_gathered_fewer_at_a_time(monkeypatch):
    asked = []
    gather = Digits.batches
    monkeypatch.setattr(Digits, "batches", lambda self, *given: asked.append(len(given[1])) or gather(self, *given))
    monkeypatch.setattr(data_module, "GATHERED_BYTES", 5 * 13 * (64 * 4 + 8))
    data, plain = training_data("digits"), training_data("digits")
    for index in range(30):
        same(data.batch(index), one_by_one(plain, index))
    several = [count for count in asked if count > 1]
    assert several[0] == data_module.TOGETHER and set(several[1:]) == {5}


def test_a_task_that_draws_nothing_seeds_no_generator(monkeypatch):
    seeded = []
    monkeypatch.setattr(data_module, "seed_for", lambda *purpose: seeded.append(purpose) or seed_for(*purpose))
    data = training_data("digits")
    for index in range(20):
        data.batch(index)
    assert [purpose[1:] for purpose in seeded if purpose[1] == "batch"] == [("batch", 0)]


def test_tasks_that_collate_make_one_batch_at_a_time(monkeypatch):
    data, plain = training_data("copy", 5), training_data("copy", 5)
    made = []
    collate = type(data.task).collate
    monkeypatch.setattr(type(data.task), "collate", lambda self, *given: made.append(1) or collate(self, *given))
    for index in range(4):
        batch = data.batch(index)
        assert len(made) == index + 1
        with monkeypatch.context() as undone:
            undone.setattr(type(data.task), "collate", collate)
            same(batch, one_by_one(plain, index))


def test_loaders_collate_the_same_batches():
    data, plain = training_data("digits", loaders=1), training_data("digits")
    try:
        for index in range(6):
            same(data.batch(index), one_by_one(plain, index))
    finally:
        data.close()
