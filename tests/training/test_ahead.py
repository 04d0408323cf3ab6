"""Steps sent ahead: the loop reads results late, and nothing of a run shows that it did."""

import json
import math

import pytest
import torch

from regard import tasks
from regard.tasks import Batch
from regard.training import learner, train
from regard.training.cuda_graph import graphed_step
from regard.training.data import generator
from regard.training.run_folder import checkpoints
from regard.training.step import NonFinite, Taken


class Late:
    """A step that was taken at once, but says so only when a later one was sent, or when someone waits."""

    def __init__(self, taken, index, owner):
        self.taken, self.index, self.owner, self.number = taken, index, owner, owner.sent

    @property
    def ready(self):
        return self.owner.sent - self.number >= 3

    def landed(self):
        if not math.isfinite(self.taken.loss):
            raise NonFinite(
                f"the loss is {self.taken.loss} for the batch of training examples {list(self.index)}"
            )
        return self.taken


class Ahead:
    """What a recorded step does on a GPU, done here: after a loss that is no number nothing changes any more."""

    def __init__(self, step):
        self.step, self.sent, self.spoilt, self.most = step, 0, False, 0

    def __call__(self, batches):
        (batch,) = batches
        self.sent += 1
        taken = Taken(1.0, 1.0)
        if not self.spoilt:
            try:
                taken = self.step([batch])
            except NonFinite:
                self.spoilt, taken = True, Taken(math.nan, 1.0)
        return Late(taken, batch.index, self)


@pytest.fixture
def ahead(monkeypatch):
    prepare = learner.Learner._prepare
    monkeypatch.setattr(
        learner.Learner, "_prepare", lambda self, checkpoint: Ahead(prepare(self, checkpoint))
    )


def run(folder, **changes):
    values = {"task": "toy", "steps": 23, "eval_every": 7, "save_every": 11, "log_every": 1, "device": "cpu"}
    return train({**values, "out": str(folder), **changes}, quiet=True)


def same_tensors(folder, one, other):
    """Whether two runs ended with the same weights, optimiser and random state."""
    found = [checkpoints.load_newest(folder / name / "checkpoints", print)[0] for name in (one, other)]
    return all(
        torch.equal(value, getattr(found[1], pieces)[name])
        for pieces in ("weights", "optimizer", "random")
        for name, value in getattr(found[0], pieces).items()
    )


def lines(folder):
    timed = ("seconds", "steps_per_second")
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in found]


def test_a_run_whose_steps_are_sent_ahead_is_the_run_that_waits_for_each(tmp_path, request):
    usual = run(tmp_path / "usual")
    request.getfixturevalue("ahead")
    late = run(tmp_path / "late")
    assert lines(tmp_path / "late") == lines(tmp_path / "usual")
    assert (late.steps, late.tokens, late.metrics, late.best) == (
        usual.steps,
        usual.tokens,
        usual.metrics,
        usual.best,
    )
    assert same_tensors(tmp_path, "usual", "late")


def test_a_loss_that_is_no_number_is_found_late_and_saved_as_of_the_step_before_it(tmp_path, request):
    with pytest.raises(NonFinite) as usual:
        run(tmp_path / "usual", task="toy(poison=5)", log_every=2)
    request.getfixturevalue("ahead")
    with pytest.raises(NonFinite) as late:
        run(tmp_path / "late", task="toy(poison=5)", log_every=2)
    assert str(late.value) == str(usual.value).replace(str(tmp_path / "usual"), str(tmp_path / "late"))
    assert lines(tmp_path / "late") == lines(tmp_path / "usual")
    saved = [checkpoints.load_newest(tmp_path / name / "checkpoints", print)[0] for name in ("usual", "late")]
    assert saved[0].name == saved[1].name and saved[0].step > 0
    assert same_tensors(tmp_path, "usual", "late")


def test_an_interrupted_and_resumed_run_ends_with_the_same_weights(tmp_path, ahead):
    run(tmp_path / "parts", steps=9, **{"optim.schedule": "constant"})
    run(tmp_path / "same", **{"optim.schedule": "constant"})
    values = {"steps": 23, "out": str(tmp_path / "parts")}
    train(values, resume=str(tmp_path / "parts"), quiet=True)
    assert same_tensors(tmp_path, "same", "parts")


def test_an_error_in_the_data_saves_what_was_learned_so_far(tmp_path, ahead, monkeypatch):
    from tests.training.toy import Toy

    collate = Toy.collate

    def failing(self, examples, random):
        failing.count += 1
        if failing.count == 6:
            raise OSError("the disk is gone")
        return collate(self, examples, random)

    failing.count = 0
    monkeypatch.setattr(Toy, "collate", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        run(tmp_path / "run", eval_every=100, save_every=100)
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3, 4, 5]
    assert checkpoints.load_newest(tmp_path / "run" / "checkpoints", print)[0].step == 5


def test_a_flight_reads_its_slot_once_and_raises_what_a_step_raises():
    class Arrived:
        asked = 0

        def synchronize(self):
            self.asked += 1

        def query(self):
            return False

    def check(loss, norm, spoilt):
        if spoilt:
            raise NonFinite("not taken")

    slot, arrived = torch.tensor([0.5, 2.0, 0.0]), Arrived()
    flight = graphed_step.Flight(slot, arrived, check)
    assert not flight.ready
    assert flight.landed() == Taken(0.5, 2.0) and flight.ready
    slot.fill_(7.0)  # another step uses it now
    assert flight.landed() == Taken(0.5, 2.0) and arrived.asked == 1
    with pytest.raises(NonFinite, match="not taken"):
        graphed_step.Flight(torch.tensor([0.5, 2.0, 1.0]), arrived, check).landed()


@pytest.mark.parametrize("context", [7, 8, 4000, 10**6])
def test_windows_cut_all_at_once_are_those_cut_one_by_one(context):
    task = tasks.build("language", context=context)
    examples = task.examples("train")
    every = len(examples)
    half, third = every // 2, every // 3
    for chosen in ([0], [every - 1], [0, half, every - 1, third], [half] * 5, [half, third]):
        chosen = [index % every for index in chosen]
        quick = task.batch(examples, chosen, generator("a", 1))
        slow = task.collate([examples[i] for i in chosen], generator("a", 1))
        assert quick.keep is None and slow.keep is None
        assert torch.equal(quick.inputs, slow.inputs) and torch.equal(quick.targets, slow.targets)
        assert quick.inputs.is_contiguous() and quick.targets.is_contiguous()


def test_hidden_words_and_other_tasks_are_collated_as_ever():
    task = tasks.build("language", context=9, objective="hidden")
    examples = task.examples("train")
    quick, slow = (
        task.batch(examples, [1, 2], generator(3)),
        task.collate([examples[1], examples[2]], generator(3)),
    )
    assert isinstance(quick, Batch) and all(
        torch.equal(quick.tensors()[n], t) for n, t in slow.tensors().items()
    )
