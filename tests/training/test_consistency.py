"""Consistency (R-Drop): the divergence of two passes against `kl_div`, accumulation, runs, and what is refused."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.errors import BadValue
from regard_workbench.models import Model
from regard_workbench.tasks import Batch, OneOf, Tokens
from regard_workbench.tasks.answers import EachOf, NextToken, Writes
from regard_workbench.tasks.parts.batch import Stream
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.training import Config, Optim, hardware
from regard_workbench.training.engines.step import Step
from regard_workbench.training.loading import load
from tests.training import toy  # noqa: F401  registers the toy task

EXAMPLES, CLASSES = 5, 3
TEXT = Writes(CLASSES, 7, 0, 1)


class Noisy(Model):
    """Logits of each example from a table; what is read again is changed in a fixed way, as dropout would change it."""

    def __init__(self):
        super().__init__(Problem.of(Tokens(EXAMPLES), OneOf(CLASSES)))
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(EXAMPLES, CLASSES, dtype=torch.float64))
        self.change = torch.randn(EXAMPLES, CLASSES, dtype=torch.float64)
        self.head = OneOf(CLASSES).head()

    def forward(self, batch):
        rows = batch.inputs[:, 0]
        again = torch.zeros(len(rows), 1, dtype=torch.float64)
        if len(batch.index) == 2 * len(set(batch.index)):
            again[len(rows) // 2 :] = 1
        return self.head(self.table[rows] + again * self.change[rows], batch)


def batch_of(*rows):
    targets = torch.tensor([row % CLASSES for row in rows])
    return dataclasses.replace(Batch.of(torch.tensor(rows)[:, None], targets=targets), index=rows)


def step_of(model, consistency):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    device = hardware.prepare(Config(task="toy", device="cpu"))
    return Step(device, model, optimizer, Optim(consistency=consistency))


def stepped(consistency, *batches, model=None):
    """The gradient of a step, and its result."""
    model = model or Noisy()
    result = step_of(model, consistency)(iter(batches))
    return model.table.grad, result


@pytest.mark.parametrize("consistency", [0.5, 3.0])
def test_the_gradient_is_that_of_the_mean_loss_and_the_mean_of_both_divergences(consistency):
    rows = (0, 1, 2, 3, 4)
    found, result = stepped(consistency, batch_of(*rows))
    model = Noisy()
    targets = torch.tensor([row % CLASSES for row in rows])
    p, q = (table.log_softmax(-1) for table in (model.table, model.table + model.change))
    loss = (F.nll_loss(p, targets) + F.nll_loss(q, targets)) / 2
    divergences = [F.kl_div(a, b, log_target=True, reduction="batchmean") for a, b in ((p, q), (q, p))]
    (loss + consistency * sum(divergences) / 2).backward()
    assert torch.allclose(found, model.table.grad, atol=1e-6)  # the loss is computed in float32
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-5)  # what is reported is without the divergence


def test_accumulated_ragged_batches_equal_one_large_batch():
    apart, one = stepped(2.0, batch_of(0, 1), batch_of(2, 3, 4))
    whole, other = stepped(2.0, batch_of(0, 1, 2, 3, 4))
    assert torch.allclose(apart, whole, atol=1e-6) and one.loss == pytest.approx(other.loss)


class NoisyText(Model):
    """Logits of each example and position from a table, changed in a fixed way where they are read again."""

    def __init__(self, answer=TEXT):
        super().__init__(Problem.of(Tokens(EXAMPLES), answer))
        torch.manual_seed(1)
        self.table = nn.Parameter(torch.randn(EXAMPLES, 7, CLASSES, dtype=torch.float64))
        self.change = torch.randn(EXAMPLES, 7, CLASSES, dtype=torch.float64)
        self.head = TEXT.head()

    def forward(self, batch):
        rows, again = batch.inputs[:, 0], torch.zeros(batch.size, 1, 1, dtype=torch.float64)
        again[batch.size // 2 :] = 1
        return self.head((self.table[rows] + again * self.change[rows])[:, : batch.targets.shape[1]], batch)


def texts_of(*rows, lengths=(7, 2, 5, 3, 6)):
    """Texts of different lengths, padded; target t of text r is (r + t) mod 3."""
    longest = max(lengths[row] for row in rows)
    targets = (torch.tensor(rows)[:, None] + torch.arange(longest)) % CLASSES
    keep = torch.arange(longest) < torch.tensor([lengths[row] for row in rows])[:, None]
    return dataclasses.replace(Batch.of(torch.tensor(rows)[:, None], None, targets, keep), index=rows)


def step_of_texts(consistency, *batches, answer=TEXT):
    return stepped(consistency, *batches, model=NoisyText(answer))


@pytest.mark.parametrize("answer", [TEXT, NextToken(CLASSES), EachOf(CLASSES)])
def test_texts_are_compared_token_by_token_without_their_padding(answer):
    """Against two passes, target by target, in a loop."""
    batch = texts_of(0, 1, 2, 3, 4)
    found, result = step_of_texts(2.5, batch, answer=answer)
    model = NoisyText()
    p, q = (table.log_softmax(-1) for table in (model.table, model.table + model.change))
    losses, divergences = [], []
    for row in range(EXAMPLES):
        for place in range(int(batch.target_keep[row].sum())):
            right = batch.targets[row, place]
            losses += [-p[row, place, right], -q[row, place, right]]
            one, other = p[row, place], q[row, place]
            divergences.append((one.exp() * (one - other)).sum() / 2 + (other.exp() * (other - one)).sum() / 2)
    assert len(divergences) == 23  # and not 35: padding is left out
    loss = torch.stack(losses).mean()
    (loss + 2.5 * torch.stack(divergences).mean()).backward()
    assert torch.allclose(found, model.table.grad, atol=1e-6)
    assert result.loss == pytest.approx(float(loss.detach()), rel=1e-5)


def test_the_divergence_of_two_tokens_by_hand():
    """p = (¾, ¼) and q = (¼, ¾): KL(p ‖ q) = ¾ ln 3 − ¼ ln 3 = ½ ln 3, and the same back; padding is out."""
    targets, keep = torch.zeros(2, 2, dtype=torch.long), torch.tensor([[True, False]] * 2)
    batch = Batch.of(torch.zeros(2, 1), None, targets, keep)
    odds = torch.tensor([[[3.0, 1.0], [1.0, 9.0]], [[1.0, 3.0], [9.0, 1.0]]]) / torch.tensor([[[4.0], [10.0]]])
    step = step_of(NoisyText(Writes(2, 3, 0, 1)), 1.0)
    assert float(step._divergence(odds.log(), batch)) == pytest.approx(math.log(3))


def test_accumulated_texts_equal_one_large_batch():
    apart, one = step_of_texts(2.0, texts_of(0, 1), texts_of(2, 3, 4))
    whole, other = step_of_texts(2.0, texts_of(0, 1, 2, 3, 4))
    assert torch.allclose(apart, whole, atol=1e-6) and one.loss == pytest.approx(other.loss)


def test_without_consistency_the_model_reads_once():
    found, result = stepped(0.0, batch_of(0, 3))
    model = Noisy()
    loss = F.cross_entropy(model.table[[0, 3]], torch.tensor([0, 0]))
    loss.backward()
    assert torch.allclose(found, model.table.grad, atol=1e-6) and result.loss == pytest.approx(float(loss.detach()))


def test_a_batch_read_twice_repeats_everything_but_edges():
    keep = torch.tensor([[True, True], [True, False]])
    batch = dataclasses.replace(
        Batch.of(torch.arange(4).view(2, 2), keep, torch.tensor([7, 8]), kind=("a", "b")),
        index=(3, 9),
        offset=torch.tensor([[1.0], [2.0]]),
    )
    twice = batch.times(2)
    assert twice.inputs.tolist() == [[0, 1], [2, 3]] * 2 and twice.keep.tolist() == keep.tolist() * 2
    assert twice.targets.tolist() == [7, 8, 7, 8] and twice.index == (3, 9, 3, 9)
    assert twice.notes == {"kind": ("a", "b", "a", "b")} and twice.offset.flatten().tolist() == [1, 2, 1, 2]
    assert set(twice.tensors()) == set(batch.tensors())
    graph = Stream(torch.zeros(1, 4, 3), edges=torch.tensor([[0, 1], [2, 3]])).times(2)
    assert graph.data.shape == (2, 4, 3) and graph.edges.tolist() == [[0, 1], [2, 3]]


def test_a_run_learns_with_it_and_is_the_same_each_time(tmp_path):
    def weights(name, **settings):
        run = regard.train(
            "toy", model="toy-net(dropout=0.3)", steps=3, out=tmp_path / name, device="cpu", quiet=True, **settings
        )
        return load(run.folder, checkpoint="last", device="cpu").model.state_dict()

    first, again, plain = (
        weights(name, **settings)
        for name, settings in {
            "first": {"optim.consistency": 1.0},
            "again": {"optim.consistency": 1.0},
            "plain": {},
        }.items()
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], plain[name]) for name in first)


def test_answers_that_are_not_one_of_several_classes_are_refused(tmp_path):
    with pytest.raises(BadValue, match=r"optim\.consistency: only answers that are one of several classes"):
        regard.train(
            "copy",
            model="decoder(dim=16,layers=1)",
            steps=1,
            out=tmp_path / "run",
            device="cpu",
            quiet=True,
            **{"optim.consistency": 1.0},
        )
    with pytest.raises(BadValue, match=r"optim\.consistency: expected"):
        regard.train("toy", steps=1, out=tmp_path / "run", **{"optim.consistency": -1.0})
