"""Completion by a model with a decoder: what it writes after the opening of each target, by hand."""

import math

import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.tasks import Batch
from regard_workbench.tasks.measures import completion
from tests.tasks.stand_ins import Fixed, judged

COUNT = 11


class Decoding(Fixed):
    """Its logits for a position depend on the input's first token, the position and the target before it."""

    def __init__(self, table):
        super().__init__(lambda batch: None)
        self.table = table

    def __call__(self, batch):
        before = torch.nn.functional.pad(batch.targets[:, :-1], (1, 0))
        place = torch.arange(batch.targets.shape[1])
        return self.table[batch.inputs[:, :1] % 2, place, before]


def test_completion_of_targets_of_different_lengths_is_judged_on_the_own_prefix():
    own = torch.Generator().manual_seed(3)
    model = Decoding(torch.randn(2, 9, COUNT, COUNT, generator=own))
    lengths = [9, 5, 3]  # the last is too short to have an opening
    inputs = torch.randint(1, COUNT, (3, 4), generator=own)
    targets = torch.randint(1, COUNT, (3, 9), generator=own)
    keep = torch.arange(9) < torch.tensor(lengths)[:, None]
    batch = completion.second_halves(Batch.of(inputs, None, targets, keep))
    assert batch.target_keep.sum(1).tolist() == [5, 3, 0]
    found = {m.name: m.value(s) for m, s in completion.examine(model, [batch], completion.REWRITTEN, "cpu")}
    for prefix, free in (("", True), ("teacher_forced_", False)):
        right, cost, count = 0, 0.0, 0
        for row, length in enumerate(lengths[:2]):
            before = [0, *targets[row, : length // 2].tolist()]
            for place in range(length // 2, length):
                odds = model.table[int(inputs[row, 0]) % 2, place, before[-1]].double().log_softmax(0)
                right += int(odds.argmax()) == int(targets[row, place])
                cost -= float(odds[targets[row, place]])
                count += 1
                before.append(int(odds.argmax()) if free else int(targets[row, place]))
        assert found[f"{prefix}completion_accuracy"] == pytest.approx(right / count)
        assert found[f"{prefix}completion_nll"] == pytest.approx(cost / count, rel=1e-6)
    assert found["completion_nll"] != pytest.approx(found["teacher_forced_completion_nll"], rel=0.01)


def test_a_task_that_writes_has_perplexity_and_completion():
    task = tasks.build("dates")
    count = task.problem.answer.outputs
    model = Fixed(lambda b: torch.zeros(*b.targets.shape, count), lambda b: [[] for _ in range(b.size)])
    found = judged(task, model, task.collate(task.examples("test")[:5], torch.Generator()))
    assert found["perplexity"] == pytest.approx(count, rel=1e-5) and found["loss"] == pytest.approx(math.log(count))
    names = [metric.name for metric, _ in task.completed(model, "test", batch_size=7, most=11, device="cpu")]
    assert names == [metric.name for metric in completion.REWRITTEN]
    assert "source" in task.protocol()["completion"]


class Passing:
    """A model without its steps: it can only be asked for all places at once."""

    def __init__(self, model):
        self.model = model

    def __call__(self, batch):
        return self.model(batch)


@pytest.mark.parametrize("name", ["seq2seq(dim=16)", "transformer(dim=16,layers=1)", "bridge(dim=16,layers=1)"])
def test_completion_step_by_step_is_that_of_whole_passes(name):
    task = tasks.build("dates")
    torch.manual_seed(5)
    model = models.build(name, task.problem).eval()
    batch = completion.second_halves(task.collate(task.examples("test")[:7], torch.Generator()))
    found = [
        {
            metric.name: metric.value(state)
            for metric, state in completion.examine(one, [batch], completion.REWRITTEN, "cpu")
        }
        for one in (model, Passing(model))
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
