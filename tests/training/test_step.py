"""One step: accumulation equals one large batch, a non-finite loss changes nothing, clipping, smoothing."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard_workbench.tasks import Batch
from regard_workbench.training import Config, engines, hardware, optim
from regard_workbench.training.build import build_model, build_task
from regard_workbench.training.config import Optim
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.engines.cuda_graph import graphed_step
from regard_workbench.training.engines.cuda_graph.rmsprop import SkippableRMSprop
from regard_workbench.training.engines.engine import NonFinite
from regard_workbench.training.engines.step import Step


def parts(dtype=torch.float32, **changes):
    torch.manual_seed(0)
    config = complete(Config(task="toy", model="toy-net(dropout=0.0)", device="cpu"))
    task = build_task(config)
    model = build_model(config, task).to(dtype)
    model.forward = lambda batch: deterministic(model, batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return task, model, Step(hardware.prepare(config), model, optimizer, Optim(**changes))


def deterministic(model, batch):
    """The toy's forward pass without its random parts."""
    rows = model.rows(batch.inputs) * batch.keep[..., None]
    seen = model.norm(rows.sum(1) / batch.keep.sum(1, keepdim=True))
    return model.head(model.again(torch.tanh(model.mix(seen))), batch)


def collated(task, indices):
    examples = task.examples("train")
    batch = task.collate([examples[i] for i in indices], torch.Generator().manual_seed(int(sum(indices))))
    return dataclasses.replace(batch, index=tuple(indices))


def joined(batches, width=11):
    pad = lambda t: F.pad(t, (0, width - t.shape[1]))  # noqa: E731
    inputs = torch.cat([pad(batch.inputs) for batch in batches])
    return Batch.of(inputs, inputs > 0, torch.cat([batch.targets for batch in batches]))


@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
def test_accumulated_ragged_batches_equal_one_large_batch(dtype, within):
    sizes = [range(0, 2), range(2, 13), range(13, 16), range(16, 17)]
    task, apart, step = parts(dtype)
    batches = [collated(task, chosen) for chosen in sizes]
    _, whole, big = parts(dtype)
    found, want = step(iter(batches)), big([joined(batches)])
    # The loss itself is computed in float32, which leaves rounding errors.
    assert found.loss == pytest.approx(want.loss, rel=1e-6)
    assert found.norm == pytest.approx(want.norm, rel=1e-6)
    for name, parameter in apart.named_parameters():
        other = dict(whole.named_parameters())[name]
        torch.testing.assert_close(parameter, other, rtol=0, atol=max(within, 2e-7))


def test_the_mean_of_batch_means_differs():
    """So the test above can fail."""
    task, model, _ = parts()
    batches = [collated(task, range(0, 2)), collated(task, range(2, 13))]
    with torch.no_grad():
        sums = [model.loss(deterministic(model, batch), batch) for batch in batches]
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
    want = F.cross_entropy(deterministic(model, batch), batch.targets, label_smoothing=0.3)
    assert losses[1] == pytest.approx(float(want.detach()), rel=1e-6)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_non_finite_loss_changes_no_weight_and_names_its_examples(bad):
    task, model, step = parts()

    def loss(outputs, batch, smoothing=0.0):
        return outputs.sum() * (bad if 3 in batch.index else 1), torch.tensor(1.0)

    model.loss = loss
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NonFinite, match=r"training examples \[2, 3\]"):
        step([collated(task, range(0, 2)), collated(task, range(2, 4))])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_non_finite_gradient_changes_no_weight():
    task, model, step = parts()
    model.loss = lambda outputs, batch, smoothing=0.0: ((outputs * 0).abs().sqrt().sum(), torch.tensor(1.0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(NonFinite, match="norm of the gradient is nan"):
        step([collated(task, range(3))])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_batch_with_a_count_of_zero_keeps_weights_finite():
    task, model, step = parts()
    model.loss = lambda outputs, batch, smoothing=0.0: ((outputs * 0).sum(), torch.tensor(0.0))
    assert step([collated(task, range(3))]).loss == 0.0
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_without_a_gpu_no_step_is_captured():
    config = complete(Config(task="toy", device="cpu"))
    assert "no GPU" in engines.uncaptured(config, hardware.prepare(config))
    assert (
        engines.uncaptured(dataclasses.replace(config, graph=False), hardware.prepare(config))
        == "graph is switched off"
    )


def test_fused_adamw_changes_nothing_if_found_inf_is_set():
    """Captured steps rely on this: `found_inf` keeps AdamW from changing weights and state."""
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(optim.groups(net, 0.1), lr=0.1, fused=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    before = {**{k: v.clone() for k, v in net.state_dict().items()}, **optim.optimizer_state(optimizer, net)}
    before = {name: value.clone() for name, value in before.items()}
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    after = {**net.state_dict(), **optim.optimizer_state(optimizer, net)}
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_skippable_rmsprop_equals_torchs_and_changes_nothing_if_found_inf_is_set():
    torch.manual_seed(0)
    nets = [nn.Linear(5, 3), nn.Linear(5, 3)]
    nets[1].load_state_dict(nets[0].state_dict())
    settings = Optim(optimizer="rmsprop", lr=0.01)
    ours, theirs = optim.build(nets[0], settings, captured=True), optim.build(nets[1], settings)
    assert isinstance(ours, SkippableRMSprop) and not isinstance(theirs, SkippableRMSprop)

    def everything():
        return [x.clone() for x in (*nets[0].parameters(), *optim.optimizer_state(ours, nets[0]).values())]

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
    pairs = zip(
        optim.optimizer_state(ours, nets[0]).values(), optim.optimizer_state(theirs, nets[1]).values(), strict=True
    )
    for mine, wanted in (*zip(nets[0].parameters(), nets[1].parameters(), strict=True), *pairs):
        torch.testing.assert_close(mine, wanted, rtol=1e-6, atol=1e-6)


class Operations(TorchDispatchMode):
    """Records the names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_rmsprop_copies_nothing_between_host_and_device():
    """Such copies are forbidden while a graph is captured."""
    net = nn.Linear(3, 2)
    optimizer = optim.build(net, Optim(optimizer="rmsprop", lr=0.01), captured=True)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    optimizer.found_inf = torch.zeros(())
    with Operations() as operations:
        optimizer.step()
    forbidden = ("_local_scalar_dense", "_to_copy", "lift_fresh", "scalar_tensor")
    assert not [name for name in operations.names if any(word in name for word in forbidden)]


def test_batches_of_different_shapes_have_different_layouts():
    task, _, _ = parts()
    assert graphed_step.layout(collated(task, [0])) == graphed_step.layout(collated(task, [0]))
    assert graphed_step.layout(collated(task, [0])) != graphed_step.layout(collated(task, [0, 1, 2]))


class StandIn(graphed_step.GraphedStep):
    """A graphed step without a GPU: it returns how each batch was run."""

    def __init__(self, fails=False):
        super().__init__(lambda batches: "eager", torch.optim.SGD([nn.Parameter(torch.ones(1))]), self.note)
        self.told, self.fails = [], fails

    def note(self, text):
        self.told.append(text)

    def _capture(self, batch):
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    def _warm_up(self, batch):
        return "warm-up"

    def _replay(self, batch, captured):
        return "replayed"


def sized(rows):
    return dataclasses.replace(Batch.of(torch.zeros(rows, 2)), index=tuple(range(rows)))


def test_a_repeated_shape_is_captured_and_others_run_eagerly():
    step = StandIn()
    ways = [step([sized(rows)]) for rows in (3, 5, 5, 5, 5, 5, 3, 5)]
    assert ways == ["warm-up"] * 4 + ["replayed", "replayed", "eager", "replayed"]
    assert not step.told


def test_repeated_shapes_are_captured_up_to_a_maximum():
    step = StandIn()
    ways = [step([sized(rows)]) for rows in (3, 4, 5, 6, 7) * 9]
    assert ways == ["warm-up"] * 15 + ["replayed"] * 30
    step = StandIn()
    many = range(1, graphed_step.MAX_SHAPES + 3)
    ways = [[step([sized(rows)]) for _ in range(5)] for rows in many]
    assert [way[-1] for way in ways] == ["replayed"] * graphed_step.MAX_SHAPES + ["eager"] * 2
    assert not step.told


def test_shapes_that_never_repeat_and_failed_captures_disable_graphs_with_a_message():
    step = StandIn()
    ways = [step([sized(rows)]) for rows in range(1, graphed_step.MAX_BATCHES_PER_REPEAT + 3)]
    assert ways[-1] == "eager" and "batches differ in shape" in step.told[0] and len(step.told) == 1
    step = StandIn(fails=True)
    ways = [step([sized(5)]) for _ in range(6)]
    assert ways[4:] == ["eager", "eager"]
    assert step.told == [
        "No CUDA graph: operation not permitted when stream is capturing. Steps run one kernel at a time."
    ]
