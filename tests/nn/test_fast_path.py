"""The seam: who is asked what, and that nothing but speed depends on it."""

import json
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from torch import nn

from regard.nn import fast_path
from regard.nn.fast_path import Loss
from regard_workbench import models
from regard_workbench.models.parts.recurrent import Recurrent
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import NextToken
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens
from regard_workbench.training import Config, Optim, hardware
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = Problem.of(Tokens(11, length=5), NextToken(11))


class StandIn:
    """A guest that notes what it is asked, and answers what it was given."""

    def __init__(self, outputs=None, answer=None):
        self.outputs, self.answer, self.asked = outputs, answer, []

    def run(self, module, *arguments, **options):
        self.asked.append((type(module).__name__, sorted(options)))
        return self.outputs

    def loss(self, model, batch, smoothing, seed):
        self.asked.append((type(model).__name__, smoothing, seed))
        return self.answer

    def copies(self, parameters):
        return [parameter.bfloat16() for parameter in parameters]


@pytest.fixture
def host(monkeypatch):
    """Have these guests and no others."""
    fast_path.load()  # before, so that it adds none to them

    def have(*guests):
        monkeypatch.setattr(fast_path, "_GUESTS", list(guests))
        return guests[0] if guests else None

    return have


@pytest.fixture
def unread(monkeypatch):
    """As before the first question: no guest is loaded."""
    monkeypatch.setattr(fast_path, "_GUESTS", [])
    fast_path._load.cache_clear()
    yield
    fast_path._load()  # nothing more is added, whatever the order of tests


def batch_of():
    torch.manual_seed(3)
    ids = torch.randint(1, 11, (2, 6))
    return Batch.of(ids[:, :-1], targets=ids[:, 1:])


def decoder():
    torch.manual_seed(0)
    return models.build("decoder", PROBLEM, layers=1, dim=8, num_heads=2, dropout=0.0)


def step_of(model, **options):
    config = complete(Config(task="language", model="decoder", device="cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return CapturableStep(hardware.prepare(config), model, optimizer, Optim(**options))


def test_where_a_guest_answers_the_modules_do_not_run(host):
    rows = torch.randn(2, 5, 8)
    guest = host(StandIn(torch.zeros(2, 5, 8)))
    stack = Stack(8, 1, "causal", causal=True)
    stack.layers[0].register_forward_hook(lambda *given: pytest.fail("a layer was called"))
    assert stack(rows, mask=None) is guest.outputs
    assert guest.asked == [("Stack", ["mask"])]
    state = (torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    guest = host(StandIn((rows, state)))
    found, after = Recurrent(8)(rows)
    assert found is rows and after.cell.shape == (2, 1, 8)
    assert guest.asked == [("LSTM", ["keep", "state"])]


def test_the_first_guest_that_can_is_taken(host):
    first, second, third = (StandIn(outputs) for outputs in (None, torch.ones(1), torch.zeros(1)))
    host(first, second, third)
    module = nn.Linear(1, 1)
    assert fast_path.run(module, torch.ones(1)) is second.outputs
    assert first.asked and not third.asked
    assert fast_path.copies(list(module.parameters()))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("guests", [(), (StandIn(),)], ids=["no guest", "one that cannot"])
def test_where_no_guest_can_the_modules_run(host, monkeypatch, guests):
    model, batch = decoder(), batch_of()
    host(*guests)
    found, loss = model(batch), model.loss_of(batch, 0.1)
    monkeypatch.setattr(fast_path, "enabled", False)
    logits = model(batch)
    total, count = model.loss(logits, batch, 0.1)
    assert torch.equal(found, logits)
    assert torch.equal(loss.total, total) and torch.equal(loss.count, count) and loss.divided is None
    assert torch.equal(loss.mean, total / count)


def test_the_mean_of_a_loss_is_a_kernels_own_where_it_has_made_it_and_0_of_nothing():
    total, count = torch.tensor(3.0), torch.tensor(2.0)
    assert Loss(total, count).mean == 1.5
    assert Loss(total, count, torch.tensor(7.0)).mean == 7
    assert Loss(torch.tensor(0.0), torch.tensor(0.0)).mean == 0


def test_switched_off_no_guest_is_asked(host, monkeypatch):
    guest = host(StandIn(torch.zeros(1), Loss(torch.ones(()), torch.ones(()))))
    monkeypatch.setattr(fast_path, "enabled", False)
    model = decoder()
    model.loss_of(batch_of())
    assert not guest.asked
    assert set(fast_path.copies(list(model.parameters()))) == {None}


def test_a_step_asks_for_the_loss_alone_unless_it_needs_the_outputs(host):
    model, batch = decoder(), batch_of()
    weight = next(model.parameters())
    guest = host(StandIn(answer=Loss(weight.sum() * 6, torch.tensor(2.0), weight.sum() * 5)))
    step = step_of(model)
    step.seed = 7
    loss, _ = step.losses(batch, torch.tensor([7]))
    assert loss is guest.answer
    assert guest.asked == [("Decoder", 0.0, torch.tensor([7]))]
    step.backward(batch)
    assert torch.equal(weight.grad, torch.full_like(weight, 5))  # of the quotient that the guest has made
    guest = host(StandIn(answer=guest.answer))
    step_of(decoder(), consistency=0.5).losses(batch, None)
    assert {name for name, *_ in guest.asked} == {"StreamEmbedding", "Stack"}


def test_the_guest_of_this_repository_is_found_with_metadata_and_without(unread, monkeypatch):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][fast_path.GROUP]
    assert declared == {fast_path.OWN.name: fast_path.OWN.value}
    for known in ((), (fast_path.OWN,)):
        monkeypatch.setattr(fast_path, "entry_points", lambda group, known=known: known)
        fast_path._GUESTS.clear()
        fast_path._load.cache_clear()
        fast_path.load()
        assert [type(guest).__name__ for guest in fast_path._GUESTS] == ["SmallModels"]


def test_a_guest_of_somebody_else_comes_after_and_one_that_is_gone_is_none(unread, monkeypatch):
    other = EntryPoint("other", f"{__name__}:StandIn", fast_path.GROUP)
    gone = EntryPoint("gone", "removed_package.guest:GUEST", fast_path.GROUP)
    monkeypatch.setattr(fast_path, "entry_points", lambda group: (gone, other))
    fast_path.load()
    fast_path.load()
    own, added = fast_path._GUESTS
    assert type(own).__name__ == "SmallModels" and added is StandIn


RUN = """
import json, sys
if sys.argv[1] == "without":
    sys.modules["regard_fast"] = None
import torch
from regard_workbench.training import train
train({"task": "digits", "model": sys.argv[2], "steps": 3, "batch_size": 5, "device": "cpu", "seed": 1,
       "log_every": 1, "eval_limit": 5, "out": sys.argv[3]}, quiet=True)
loaded = sorted(name for name in sys.modules if name.startswith("regard_fast."))
print(json.dumps(loaded))
"""


@pytest.mark.slow
def test_without_the_guest_a_run_on_the_cpu_is_the_same(tmp_path):
    lines, loaded = {}, {}
    for way in ("with", "without"):
        folder = tmp_path / way
        model = "static-transformer(dim=16, layers=1, num_heads=2)"
        words = [sys.executable, "-c", RUN, way, model, str(folder)]
        printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
        loaded[way] = json.loads(printed.splitlines()[-1])
        logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines[way] = [(line.get("step"), line.get("loss"), line.get("gradient_norm")) for line in logged]
    assert lines["with"] == lines["without"] and len(lines["with"]) >= 3
    assert loaded == {"with": ["regard_fast.fused_rows", "regard_fast.guest"], "without": []}
