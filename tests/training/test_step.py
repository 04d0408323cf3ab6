"""One step: accumulation equals one big batch, a loss that is no number changes nothing, clipping, smoothing."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.tasks import Batch
from regard.training import Config, hardware, optim
from regard.training.assembly import build_model, build_task, complete
from regard.training.config import Optim
from regard.training.cuda_graph import graphed_step
from regard.training.cuda_graph.rmsprop import SkippableRMSprop
from regard.training.step import NonFinite, Step


def parts(dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config = complete(Config(task="toy", model="toy-net(dropout=0.0)", device="cpu"))
    task = build_task(config)
    model = build_model(config, task).to(dtype)
    model.forward = lambda batch: still(model, batch)
    hard = hardware.prepare(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return task, model, Step(hard.accelerator, model, optimizer, task, **changes)


def still(model, batch):
    """The toy's forward pass without its random parts."""
    rows = model.rows(batch.inputs) * batch.keep[..., None]
    seen = model.norm(rows.sum(1) / batch.keep.sum(1, keepdim=True))
    return model.head(model.again(torch.tanh(model.mix(seen))))


def collated(task, indices):
    examples = task.examples("train")
    batch = task.collate([examples[i] for i in indices], torch.Generator().manual_seed(int(sum(indices))))
    return dataclasses.replace(batch, index=tuple(indices))


def joined(batches, width=11):
    pad = lambda t: F.pad(t, (0, width - t.shape[1]))  # noqa: E731
    inputs = torch.cat([pad(batch.inputs) for batch in batches])
    return Batch.of(inputs, inputs > 0, torch.cat([batch.targets for batch in batches]))


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_accumulated_ragged_batches_equal_one_big_batch(dtype, within):
    sizes = [range(0, 2), range(2, 13), range(13, 16), range(16, 17)]
    task, apart, step = parts(dtype, accumulate=4)
    batches = [collated(task, chosen) for chosen in sizes]
    _, whole, big = parts(dtype)
    found, want = step(iter(batches)), big([joined(batches)])
    # The loss itself is taken in float32, so what is left is rounding.
    assert found.loss == pytest.approx(want.loss, rel=1e-6)
    assert found.norm == pytest.approx(want.norm, rel=1e-6)
    for name, parameter in apart.named_parameters():
        other = dict(whole.named_parameters())[name]
        torch.testing.assert_close(parameter, other, rtol=0, atol=max(within, 2e-7))


def test_a_mean_of_means_would_have_been_wrong():
    """The test above can fail: the mean of the batches' means differs from the true one."""
    task, model, _ = parts()
    batches = [collated(task, range(0, 2)), collated(task, range(2, 13))]
    with torch.no_grad():
        sums = [task.loss(still(model, batch), batch) for batch in batches]
    means = sum(float(total / count) for total, count in sums) / 2
    whole = float(sum(total for total, _ in sums) / sum(count for _, count in sums))
    assert abs(means - whole) > 1e-3


def test_clipping_limits_the_norm_of_the_whole_gradient():
    task, model, step = parts(clip=0.01)
    before = copy.deepcopy(dict(model.named_parameters()))
    taken = step([collated(task, range(5))])
    assert taken.norm > 0.01
    moved = torch.cat([(p - before[n]).flatten() for n, p in model.named_parameters()])
    assert float(moved.detach().norm()) == pytest.approx(0.01, rel=1e-4)


def test_label_smoothing_reaches_the_loss():
    losses = [parts(smoothing=s)[2]([collated(parts()[0], range(5))]).loss for s in (0.0, 0.3)]
    task, model, _ = parts()
    batch = collated(task, range(5))
    want = F.cross_entropy(still(model, batch), batch.targets, label_smoothing=0.3)
    assert losses[1] == pytest.approx(float(want.detach()), rel=1e-6)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_no_number_changes_no_weight_and_names_its_examples(bad):
    task, model, step = parts(accumulate=2)
    task.loss = lambda outputs, batch, smoothing: (
        outputs.sum() * (bad if 3 in batch.index else 1),
        torch.tensor(1.0),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NonFinite, match=r"training examples \[2, 3\]"):
        step([collated(task, range(0, 2)), collated(task, range(2, 4))])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_gradient_that_is_no_number_stops_too():
    task, model, step = parts()
    task.loss = lambda outputs, batch, smoothing: ((outputs * 0).abs().sqrt().sum(), torch.tensor(1.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NonFinite, match="norm of the gradient is nan"):
        step([collated(task, range(3))])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_in_which_nothing_counts_does_no_harm():
    task, model, step = parts()
    task.loss = lambda outputs, batch, smoothing: ((outputs * 0).sum(), torch.tensor(0.0))
    assert step([collated(task, range(3))]).loss == 0.0
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_no_cuda_graph_is_taken_where_there_is_no_gpu():
    config = complete(Config(task="toy", device="cpu"))
    assert "no GPU" in graphed_step.refusal(config, hardware.prepare(config))
    assert (
        graphed_step.refusal(dataclasses.replace(config, graph=False), hardware.prepare(config))
        == "graph is switched off"
    )


def test_the_fused_optimiser_leaves_everything_alone_when_told_that_the_loss_is_no_number():
    """What a recorded step relies on: `found_inf` keeps AdamW from touching weights and memory."""
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(optim.groups(net, 0.1), lr=0.1, fused=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = {**{k: v.clone() for k, v in net.state_dict().items()}, **optim.memory(optimizer, net)}
    before = {name: value.clone() for name, value in before.items()}
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    after = {**net.state_dict(), **optim.memory(optimizer, net)}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_rmsprop_in_a_graph_takes_the_steps_of_torchs_and_leaves_everything_alone_when_told():
    torch.manual_seed(0)
    nets = [nn.Linear(5, 3), nn.Linear(5, 3)]
    nets[1].load_state_dict(nets[0].state_dict())
    settings = Optim(optimizer="rmsprop", lr=0.01)
    ours, theirs = optim.build(nets[0], settings, captured=True), optim.build(nets[1], settings)
    assert isinstance(ours, SkippableRMSprop) and not isinstance(theirs, SkippableRMSprop)

    def everything():
        return [x.clone() for x in (*nets[0].parameters(), *optim.memory(ours, nets[0]).values())]

    for number in range(12):
        x = torch.randn(7, 5)
        for net in nets:
            net.zero_grad()
            net(x).square().sum().backward()
        theirs.step()
        ours.found_inf = None if number % 2 else torch.zeros(())
        ours.step()
        before, ours.found_inf = everything(), torch.ones(())
        nets[0].weight.grad.fill_(torch.nan)
        ours.step()
        assert all(torch.equal(x, y) for x, y in zip(before, everything(), strict=True))
    pairs = zip(optim.memory(ours, nets[0]).values(), optim.memory(theirs, nets[1]).values(), strict=True)
    for mine, wanted in (*zip(nets[0].parameters(), nets[1].parameters(), strict=True), *pairs):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-6)


class Operations(TorchDispatchMode):
    """Notes the name of each."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_rmsprop_reads_no_number_back_and_sends_none():
    """Either is forbidden while a graph is recorded."""
    net = nn.Linear(3, 2)
    optimizer = optim.build(net, Optim(optimizer="rmsprop", lr=0.01), captured=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.found_inf = torch.zeros(())
    with Operations() as operations:
        optimizer.step()
    forbidden = ("_local_scalar_dense", "_to_copy", "lift_fresh", "scalar_tensor")
    assert not [name for name in operations.names if any(word in name for word in forbidden)]


def test_layouts_tell_batches_of_different_shape_apart():
    task, _, _ = parts()
    assert graphed_step.layout(collated(task, [0])) == graphed_step.layout(collated(task, [0]))
    assert graphed_step.layout(collated(task, [0])) != graphed_step.layout(collated(task, [0, 1, 2]))


class Pretended(graphed_step.GraphedStep):
    """A recorded step where there is no GPU: it notes how each batch was run."""

    def __init__(self, fails=False):
        super().__init__(lambda batches: "usual", torch.optim.SGD([nn.Parameter(torch.ones(1))]), self.note)
        self.told, self.fails = [], fails

    def note(self, text):
        self.told.append(text)

    def _record(self, batch):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def _aside(self, batch):
        return "aside"

    def _replay(self, batch, recording):
        return "replayed"


def sized(rows):
    return dataclasses.replace(Batch.of(torch.zeros(rows, 2)), index=tuple(range(rows)))


def test_a_step_is_recorded_when_a_shape_repeats_and_others_run_as_usual():
    step = Pretended()
    ways = [step([sized(rows)]) for rows in (3, 5, 5, 5, 5, 5, 3, 5)]
    assert ways == ["aside"] * 4 + ["replayed", "replayed", "usual", "replayed"]
    assert not step.told


def test_every_shape_that_repeats_is_recorded_up_to_a_bound():
    step = Pretended()
    ways = [step([sized(rows)]) for rows in (3, 4, 5, 6, 7) * 9]
    assert ways == ["aside"] * 15 + ["replayed"] * 30
    step = Pretended()
    many = range(1, graphed_step.MOST + 3)
    ways = [[step([sized(rows)]) for _ in range(5)] for rows in many]
    assert [way[-1] for way in ways] == ["replayed"] * graphed_step.MOST + ["usual"] * 2
    assert not step.told


def test_shapes_that_never_repeat_and_recordings_that_fail_end_it_with_a_message():
    step = Pretended()
    ways = [step([sized(rows)]) for rows in range(1, graphed_step.PATIENCE + 3)]
    assert ways[-1] == "usual" and "batches differ in shape" in step.told[0] and len(step.told) == 1
    step = Pretended(fails=True)
    ways = [step([sized(5)]) for _ in range(6)]
    assert ways[4:] == ["usual", "usual"]
    assert step.told == [
        "No CUDA graph: operation not permitted when stream is capturing. Steps run one kernel at a time."
    ]
