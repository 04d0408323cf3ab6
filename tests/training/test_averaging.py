"""The moving average of the weights: its numbers, where it is used, and that a run with one resumes bit for bit."""

import math
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import BadValue, RegardError
from regard_workbench.training import evaluate, load_run, train
from regard_workbench.training.averaging import AveragedWeights, rate
from regard_workbench.training.dry_run import dry_run
from regard_workbench.training.engines.engine import NonFinite
from regard_workbench.training.run_folder import checkpoints, metrics_file
from tests.training.commands import Command
from tests.training.test_schema import WRONG_TENSORS, update_manifest
from tests.training.toy import assert_same

SETTINGS = {
    "task": "toy",
    "steps": 13,
    "accumulate": 2,
    "batch_size": 4,
    "save_every": 1,
    "eval_every": 3,
    "log_every": 1,
    "keep": "all",
    "device": "cpu",
}
DECAY = 0.6  # 1 − 0.6 is the rate from step 15 on; before that it is 9 / (t + 8)


def quietly(values, **options):
    return train(values, quiet=True, tell=lambda text: None, **options)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("averaged") / "run"
    quietly({**SETTINGS, "steps": 17, "optim.average": DECAY, "out": str(folder)})
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain") / "run"
    quietly({**SETTINGS, "steps": 17, "out": str(folder)})
    return folder


def saved(folder):
    """All checkpoints in order; that of step 0 is the first."""
    return [checkpoints.load(path) for path in reversed(checkpoints.paths(folder / "checkpoints"))]


def trained(checkpoint):
    return {
        name.removesuffix(":trained"): one for name, one in checkpoint.optimizer.items() if name.endswith(":trained")
    }


def test_the_rate_falls_from_one_to_one_minus_the_decay():
    assert [rate(0.9, step) for step in (1, 10, 82)] == pytest.approx([1.0, 0.5, 0.1])
    assert rate(0.9, 83) == rate(0.9, 10**9) == pytest.approx(0.1)
    assert rate(0.0, 1) == rate(0.0, 100) == 1.0


def test_every_saved_average_equals_the_sum_of_all_weights_by_hand(averaged):
    """The share of weights i in average t is r_i (1 − r_{i+1}) … (1 − r_t), added up in float64."""
    every = saved(averaged)
    assert [one.step for one in every] == list(range(18))
    rates = [max(0.4, 9 / (step + 8)) for step in range(1, 18)]
    for last in (1, 2, 9, 17):
        shares = [rates[i] * math.prod(1 - r for r in rates[i + 1 : last]) for i in range(last)]
        assert sum(shares) == pytest.approx(1.0)  # the initial weights, before the first step, have none
        for name, average in every[last].weights.items():
            if name in trained(every[0]):
                parts = [share * trained(one)[name].double() for share, one in zip(shares, every[1:], strict=False)]
                torch.testing.assert_close(average.double(), sum(parts), rtol=1e-6, atol=1e-7)


def test_the_first_steps_are_averaged_with_polynomial_weights():
    """With η = 8, weights i of t have the share C(i + 7, 8) / C(t + 8, 9)."""
    model = nn.Linear(3, 2, bias=False).double()
    average = AveragedWeights(model, decay=0.9999)
    path = [torch.randn(2, 3, dtype=torch.double) for _ in range(11)]
    for step, weights in enumerate(path, start=1):
        with torch.no_grad():
            model.weight.copy_(weights)
        average.set_rate(step)
        average.update()
    shares = [math.comb(step + 7, 8) / math.comb(11 + 8, 9) for step in range(1, 12)]
    expected = sum(share * weights for share, weights in zip(shares, path, strict=True))
    torch.testing.assert_close(average.state()["weight"], expected)


def test_averaging_does_not_change_what_is_trained(averaged, plain):
    for ours, theirs in zip(saved(averaged), saved(plain), strict=True):
        assert trained(ours).keys() < theirs.weights.keys()
        for name, weights in theirs.weights.items():
            assert torch.equal(trained(ours).get(name, ours.weights[name]), weights), name  # or it is a buffer
    records = [metrics_file.read(folder / "metrics.jsonl") for folder in (averaged, plain)]
    assert [r["loss"] for r in records[0]] == [r["loss"] for r in records[1]]
    later = [r["validation"]["loss"] for r in records[0][3:] if "validation" in r]
    assert later != [r["validation"]["loss"] for r in records[1][3:] if "validation" in r]


def test_validation_and_every_reader_use_the_averaged_weights(averaged):
    records = {r["step"]: r["validation"] for r in metrics_file.read(averaged / "metrics.jsonl") if "validation" in r}
    for step in (3, 9, 17):
        task, model, config = load_run(averaged / "checkpoints" / f"step-{step:08d}", tell=print)
        found = evaluate(task, model, batch_size=4, seed=config.seed)
        assert {name: found[name] for name in ("loss", "accuracy")} == pytest.approx(
            {name: records[step][name] for name in ("loss", "accuracy")}, rel=1e-6
        )
    best = max(records.items(), key=lambda pair: (pair[1]["accuracy"], -pair[1]["loss"], -pair[0]))
    assert saved(averaged)[-1].state["progress"]["best_step"] == best[0]


def test_a_run_started_from_an_averaged_one_gets_the_averaged_weights(averaged, tmp_path):
    quietly({**SETTINGS, "steps": 0, "init_from": str(averaged), "out": str(tmp_path / "new")})
    best = saved(averaged)[-1].state["progress"]["best_step"]
    (new,) = saved(tmp_path / "new")  # at step 0
    for name in trained(saved(averaged)[0]):
        assert torch.equal(new.weights[name], saved(averaged)[best].weights[name])


@pytest.mark.parametrize("step", [1, 4, 12])
def test_a_run_resumed_from_any_checkpoint_ends_bit_for_bit_the_same(averaged, tmp_path, step):
    run = shutil.copytree(averaged, tmp_path / "run")
    quietly({}, resume=str(run / "checkpoints" / f"step-{step:08d}"))
    assert_same(run, averaged)


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit(tmp_path):
    settings = ["train", "toy", "--steps", "25", "--save-every", "3", "--eval-every", "7", "--optim.average", "0.8"]
    assert Command(tmp_path, *settings, "--out", tmp_path / "whole").wait() == 0
    for step in (3, 12):  # a pause two steps later, so that the process still runs when it is killed
        pause = {"REGARD_TOY_PAUSE": f"{step + 2}:7:{tmp_path / 'never'}"}
        command = Command(tmp_path, *settings, "--out", tmp_path / "run", "--resume", "auto", environment=pause)
        command.wait_for(tmp_path / "run" / "checkpoints" / f"step-{step:08d}" / "manifest.json", lines=0)
        command.send(signal.SIGKILL)
        assert command.wait() == -signal.SIGKILL
    assert Command(tmp_path, *settings, "--out", tmp_path / "run", "--resume", "auto").wait() == 0
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_a_non_finite_step_leaves_the_average_as_it_was(tmp_path):
    values = {**SETTINGS, "accumulate": 1, "optim.average": DECAY}
    with pytest.raises(NonFinite):
        quietly({**values, "task": "toy(poison=5)", "out": str(tmp_path / "poison")})
    last = saved(tmp_path / "poison")[-1]
    quietly({**values, "task": "toy", "out": str(tmp_path / "whole")})
    same = next(one for one in saved(tmp_path / "whole") if one.step == last.step)
    assert last.step > 0 and all(torch.equal(last.weights[name], same.weights[name]) for name in same.weights)


def test_a_step_that_the_device_skipped_does_not_move_the_average():
    """As in a captured step: whether the update was skipped is known on the device alone."""
    model = nn.Linear(5, 3)
    pair = [AveragedWeights(model, decay=0.7) for _ in range(2)]
    with torch.no_grad():
        model.weight.add_(1.0)
    before = pair[0].state()["weight"].clone()
    for average in pair:
        average.set_rate(30)
    pair[0].update(skipped=torch.tensor(1.0, dtype=torch.float64))
    assert torch.equal(pair[0].state()["weight"], before)
    pair[0].update(skipped=torch.tensor(0.0, dtype=torch.float64))
    pair[1].update()
    assert torch.equal(pair[0].state()["weight"], pair[1].state()["weight"])
    torch.testing.assert_close(pair[1].state()["weight"], before + 0.3)


def test_the_average_of_half_precision_weights_is_kept_in_float32():
    """A tenth of the distance between two neighbouring bfloat16 numbers is not lost."""
    model = nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    average = AveragedWeights(model, decay=0.9)
    with torch.no_grad():
        model.weight.fill_(1.0078125)
    average.set_rate(10**6)
    average.update()
    assert average.state()["weight"].dtype == torch.float32
    assert average.state()["weight"].item() == pytest.approx(1.00078125)
    with average.swapped_in():
        assert model.weight.item() == 1.0  # rounded to bfloat16 for use
    assert model.weight.item() == 1.0078125


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_every_precision_trains_and_resumes_bit_for_bit(tmp_path, precision):
    values = {**SETTINGS, "steps": 6, "eval_every": 2, "precision": precision, "optim.average": DECAY}
    quietly({**values, "out": str(tmp_path / "whole")})
    run = shutil.copytree(tmp_path / "whole", tmp_path / "run")
    quietly({}, resume=str(run / "checkpoints" / "step-00000003"))
    assert_same(run, tmp_path / "whole")


def test_weights_that_share_a_tensor_are_averaged_once(averaged):
    assert "mix.weight" in trained(saved(averaged)[0]) and "again.weight" not in trained(saved(averaged)[0])


def test_the_average_cannot_be_changed_on_resume(averaged, plain, tmp_path):
    for number, (folder, decay) in enumerate([(averaged, 0.0), (averaged, 0.9), (plain, 0.9)]):
        run = shutil.copytree(folder, tmp_path / f"run-{number}")
        with pytest.raises(BadValue, match=r"optim\.average: .* cannot continue with"):
            quietly({"optim.average": decay}, resume=str(run))


@pytest.mark.parametrize("wrong", [*WRONG_TENSORS, "missing", "surplus"])
def test_wrong_trained_weights_in_a_checkpoint_are_refused(averaged, tmp_path, wrong):
    run = shutil.copytree(averaged, tmp_path / "run")
    path = checkpoints.paths(run / "checkpoints")[0]
    tensors = load_file(path / "optimizer.safetensors")
    one = tensors.pop("mix.weight:trained")
    if wrong == "surplus":
        tensors["other.weight:trained"] = one.clone()
    if wrong != "missing":
        tensors["mix.weight:trained"] = WRONG_TENSORS.get(wrong, torch.clone)(one)
    save_file(tensors, path / "optimizer.safetensors")
    update_manifest(path)
    with pytest.raises(RegardError, match=r"resume: trained weights.*(mix|other)\.weight"):
        quietly({"steps": 20}, resume=str(run))


def test_trained_weights_in_a_run_without_an_average_are_refused(plain, tmp_path):
    run = shutil.copytree(plain, tmp_path / "run")
    path = checkpoints.paths(run / "checkpoints")[0]
    tensors = load_file(path / "optimizer.safetensors")
    save_file({**tensors, "mix.weight:trained": torch.zeros(7, 7)}, path / "optimizer.safetensors")
    update_manifest(path)
    with pytest.raises(RegardError, match=r"mix\.weight:trained .* no --optim\.average"):
        quietly({"steps": 20}, resume=str(run))


def test_a_dry_run_counts_the_memory_of_the_average(tmp_path):
    values = {**SETTINGS, "out": str(tmp_path / "run")}
    with_one = dry_run({**values, "optim.average": DECAY})["memory_mib"]
    assert with_one["average"] == with_one["gradients"] and "average" not in dry_run(values)["memory_mib"]


@pytest.mark.parametrize("given", [1, -0.1, "nan", "often"])
def test_a_decay_outside_of_zero_to_one_is_refused(given):
    with pytest.raises(BadValue, match=r"optim\.average: expected a finite number of at least 0 and below 1"):
        quietly({**SETTINGS, "optim.average": given})
