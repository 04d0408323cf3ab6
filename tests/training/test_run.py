"""`train` as a whole: best and patience, NaN, precision, init_from, dry and fast runs, evaluation."""

import json
import math

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.tasks import TASKS
from regard_workbench.training import Config, Optim, build, evaluate, load_run, train
from regard_workbench.training.dry_run import dry_run
from regard_workbench.training.engines.engine import NonFinite
from regard_workbench.training.hardware import choose_device
from regard_workbench.training.loop import Position
from regard_workbench.training.run_folder import checkpoints, metrics_file, selection
from regard_workbench.training.run_folder.durable import StorageFailed
from regard_workbench.training.run_folder.folder import RunFolder
from tests.training import toy
from tests.training.toy import weights


def settings(folder, **changes):
    return {
        "task": "toy",
        "steps": 6,
        "eval_every": 2,
        "save_every": 2,
        "log_every": 1,
        "device": "cpu",
        "out": str(folder),
        **changes,
    }


def test_training_lowers_the_loss(tmp_path):
    result = train(
        Config(
            task="toy(size=200)",
            steps=150,
            batch_size=20,
            eval_every=50,
            device="cpu",
            optim=Optim(lr=3e-2),
            out=str(tmp_path / "run"),
        )
    )
    losses = [record["loss"] for record in metrics_file.read(tmp_path / "run" / "metrics.jsonl")]
    assert sum(losses[-3:]) / 3 < 0.8 * losses[0]
    assert result.metrics["accuracy"] > 0.5
    assert result.best["metric"] == "accuracy" and result.best["value"] >= result.metrics["accuracy"]
    assert result.stopped_by == "steps" and result.steps_per_second > 0


@pytest.mark.parametrize(
    ("values", "higher", "best"),
    [
        ([math.nan, 1.0, math.nan, 2.0], True, 2.0),
        ([math.nan, 1.0, math.nan, 2.0], False, 1.0),
        ([1.0, math.nan], True, 1.0),
        ([math.inf, 0.5], True, 0.5),
        ([-math.inf, 0.5], False, 0.5),
        ([math.nan, math.nan], True, None),
    ],
)
def test_a_non_finite_value_is_never_the_best(values, higher, best):
    position = Position()
    for value in values:
        position.validated(value, higher)
    assert position.best == best


@pytest.mark.parametrize("metric", ["accuracy", "never"])
def test_patience_stops_a_run_and_a_nan_metric_saves_no_best(tmp_path, metric):
    result = train(settings(tmp_path / "run", task=f"toy(metric={metric})", steps=500, patience=3, **{"optim.lr": 0.0}))
    assert result.stopped_by == "patience"
    assert result.steps == (8 if metric == "accuracy" else 6)
    rows = [row for row in metrics_file.read(tmp_path / "run" / "metrics.jsonl") if "validation" in row]
    if metric == "accuracy":  # a buffer changes even at a learning rate of 0
        order = lambda row: (-row["validation"]["accuracy"], row["validation"]["loss"], row["step"])  # noqa: E731
        best = checkpoints.name_of(min(rows, key=order)["step"])
    else:
        best = None
    found = selection.require(RunFolder(tmp_path / "run"), selection.BEST, print)
    assert found.name == (best or checkpoints.name_of(result.steps))
    assert train({}, resume=str(tmp_path / "run")).steps == result.steps


def test_a_metric_that_is_not_measured_is_named(tmp_path):
    with pytest.raises(BadValue, match="decided by 'nothing'"):
        train(settings(tmp_path / "run", task="toy(metric=nothing)"))


def test_a_non_finite_loss_stops_the_run_and_names_the_batch(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(NonFinite) as caught:
        train(settings(run, task="toy(poison=5)", steps=9, eval_every=50))
    text = str(caught.value)
    step = int(text.split("step ")[1].split(":")[0])
    examples = json.loads(text[text.index("[") : text.index("]") + 1])
    assert 5 in examples and len(examples) <= 5 and step > 1
    # The weights, buffers and random generators are those of a healthy run as of the step before.
    train(settings(tmp_path / "healthy", steps=9, eval_every=50, save_every=step - 1))
    saved, at = weights(run)
    healthy, there = weights(tmp_path / "healthy", checkpoints.name_of(step - 1))
    assert at == there and saved.keys() == healthy.keys()
    assert all(torch.equal(value, healthy[name]) for name, value in saved.items())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true", "64-true"])
def test_every_precision_trains_and_resumes(tmp_path, precision):
    train(settings(tmp_path / "run", precision=precision, steps=3))
    result = train({"steps": 5}, resume=str(tmp_path / "run"))
    assert result.steps == 5 and all(
        math.isfinite(r["loss"]) for r in metrics_file.read(tmp_path / "run/metrics.jsonl")
    )
    kinds = {"32-true": torch.float32, "bf16-mixed": torch.float32, "bf16-true": torch.bfloat16}
    saved, _ = weights(tmp_path / "run")
    assert saved["head.logits.weight"].dtype == kinds.get(precision, torch.float64)


def test_settings_that_this_machine_cannot_run_are_refused(tmp_path):
    with pytest.raises(BadValue, match="16-mixed needs a GPU"):
        train(settings(tmp_path / "a", precision="16-mixed"))
    with pytest.raises(BadValue, match="device: expected"):
        train(settings(tmp_path / "b", device="nonsense"))
    if not torch.cuda.is_available():
        with pytest.raises(BadValue, match="0 CUDA devices"):
            train(settings(tmp_path / "c", device="cuda"))
    with pytest.raises(BadValue, match="makes its own examples"):
        train(settings(tmp_path / "d", data="x.txt"))
    assert not list(tmp_path.iterdir())


def test_a_process_without_a_gpu_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("auto") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(BadValue, match=r"process 2 of this machine .* finds only 2\. Try torchrun --nproc-per-node=2"):
        choose_device("auto")


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(settings(tmp_path / name, seed=seed, deterministic=True))
    toy.assert_same(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(
        weights(tmp_path / "a")[0]["head.logits.weight"], weights(tmp_path / "c")[0]["head.logits.weight"]
    )
    assert not torch.are_deterministic_algorithms_enabled()


def test_validating_more_often_changes_no_weight(tmp_path):
    train(settings(tmp_path / "a", eval_every=1, save_every=1))
    train(settings(tmp_path / "b", eval_every=5, save_every=5))
    for name, value in weights(tmp_path / "a")[0].items():
        assert torch.equal(value, weights(tmp_path / "b")[0][name]), name


def test_init_from_copies_the_weights_that_fit(tmp_path):
    train(settings(tmp_path / "first"))
    told = []
    init = {"init_from": str(tmp_path / "first"), "steps": 0}
    train(settings(tmp_path / "same", **init), tell=told.append)
    best = selection.require(RunFolder(tmp_path / "first"), selection.BEST, print).weights
    found, _ = weights(tmp_path / "same")
    assert all(torch.equal(found[name], best[name]) for name in best)
    assert "took 9 of 9 tensors" in "\n".join(told)

    told.clear()
    train(settings(tmp_path / "wider", model="toy-net(dim=11)", **init), tell=told.append)
    assert any("another shape: drift, rows.weight" in text for text in told), told
    with pytest.raises(BadValue, match="nothing fits"):
        theirs = {"nobody": torch.ones(3)}
        build._copy_weights(torch.nn.Linear(2, 2), theirs, told.append)
    with pytest.raises(BadValue, match="init_from: there is no run"):
        train(settings(tmp_path / "none", init_from=str(tmp_path)))
    assert not (tmp_path / "none").exists()


def test_init_from_takes_the_vocabulary_with_the_weights(tmp_path, monkeypatch):
    grown = list(range(toy.WORDS + 4))
    with monkeypatch.context() as patch:
        patch.setattr(toy.Toy, "problems", lambda self: [_with_words(self, len(self.vocabulary))])
        patch.setattr(toy, "WORDS", len(grown))
        train(settings(tmp_path / "first", steps=1))
    told = []
    train(settings(tmp_path / "second", steps=1, init_from=str(tmp_path / "first")), tell=told.append)
    assert weights(tmp_path / "second")[0]["rows.weight"].shape[0] == len(grown)
    assert any("vocabulary" in text for text in told)
    task, model, _ = load_run(tmp_path / "second")
    assert task.vocabulary == grown and model.rows.num_embeddings == len(grown)


def _with_words(task, count):
    from regard_workbench.tasks import OneOf, Problem, Tokens

    return Problem.of(Tokens(count, length=11), OneOf(toy.CLASSES))


def test_a_dry_run_describes_the_run_and_writes_nothing(tmp_path):
    found = dry_run(settings(tmp_path / "run", steps=18, accumulate=2))
    assert found["batch"]["inputs"][0] == 5 and found["outputs"] == [5, 3]
    assert found["parameters"] == 13 * 7 + 14 + 7 * 7 + 7 + 7 * 3 + 3
    assert (found["batches_per_epoch"], found["epochs"], found["examples"]["train"]) == (9, 4.0, 43)
    assert found["memory_mib"]["total"] >= found["memory_mib"]["weights"] > 0
    assert not list(tmp_path.iterdir())


def test_a_dry_run_checks_the_run_named_by_init_from(tmp_path):
    train(settings(tmp_path / "first", steps=1))
    before = set(tmp_path.rglob("*"))
    facts = dry_run(settings(tmp_path / "second", init_from=str(tmp_path / "first")))
    assert facts["init_from"] == str(tmp_path / "first")
    assert "init-from: took 9 of 9 tensors (193 numbers)." in facts["taken"]
    with pytest.raises(BadValue, match="init_from: there is no run in"):
        dry_run(settings(tmp_path / "second", init_from=str(tmp_path / "nowhere")))
    with pytest.raises(BadValue, match="init_from: nothing fits"):
        other = {"task": "digits", "model": "encoder(dim=8, layers=1, num_heads=2)"}
        dry_run(settings(tmp_path / "second", init_from=str(tmp_path / "first"), **other))
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"), [({"device": "cuda:93"}, "device: "), ({"device": "abacus"}, "device: ")]
)
def test_a_dry_run_refuses_what_the_run_would_refuse(tmp_path, changes, message):
    with pytest.raises(BadValue, match=message):
        dry_run(settings(tmp_path / "run", **changes))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="is a file, not a folder"):
        dry_run(settings(tmp_path / "file"))
    with pytest.raises(StorageFailed, match="is a file"):
        dry_run(settings(tmp_path / "file" / "run"))


def test_a_dry_run_of_a_resume_reads_its_checkpoint(tmp_path):
    train(settings(tmp_path / "run", steps=1))
    assert dry_run({}, resume=str(tmp_path / "run"))["parameters"] == 185
    (checkpoint,) = checkpoints.paths(tmp_path / "run" / "checkpoints")
    (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(checkpoints.Damaged):
        dry_run({}, resume=str(checkpoint))


def test_a_fast_dev_run_takes_one_batch_each_and_leaves_nothing(tmp_path, monkeypatch):
    calls = []
    forward = toy.ToyNet.forward
    monkeypatch.setattr(toy.ToyNet, "forward", lambda self, batch: calls.append(self.training) or forward(self, batch))
    monkeypatch.chdir(tmp_path)
    result = train({"task": "toy", "steps": 500, "accumulate": 4}, fast_dev_run=True)
    assert calls == [True, False]
    assert result.steps == 1 and not result.folder.exists() and not list(tmp_path.iterdir())


def test_metrics_do_not_depend_on_the_batch_size(tmp_path):
    train(settings(tmp_path / "run"))
    task, model, config = load_run(tmp_path / "run")
    found = [evaluate(task, model, "test", batch_size=size, seed=config.seed)["accuracy"] for size in (1, 7, 43, 100)]
    assert len(set(found[2:])) == 1
    assert not model.training
    assert evaluate(task, model, "test", limit=10, batch_size=5) is not None
    with pytest.raises(BadValue, match="split"):
        evaluate(task, model, "exam")


def test_a_run_is_loaded_with_its_best_weights(tmp_path):
    train(settings(tmp_path / "run"))
    task, model, config = load_run(tmp_path / "run")
    assert isinstance(task, TASKS["toy"]) and config.task == "toy"
    best = selection.require(RunFolder(tmp_path / "run"), selection.BEST, print)
    assert all(
        torch.equal(value, best.weights[name]) for name, value in model.state_dict().items() if name in best.weights
    )
    last = checkpoints.paths(tmp_path / "run" / "checkpoints")[0]
    assert load_run(last)[1].calls == 6
    with pytest.raises(BadValue, match="no run here"):
        load_run(tmp_path)


def test_a_missing_package_is_reported_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("regard_workbench.training.reporting.find_spec", lambda name: None)
    with pytest.raises(BadValue, match="tensorboard is not installed"):
        train(settings(tmp_path / "run", report_to="tensorboard"))
    assert not list(tmp_path.iterdir())


def test_slow_steps_are_saved_by_time(tmp_path, monkeypatch):
    saved = []
    real = checkpoints.save
    monkeypatch.setattr("regard_workbench.training.loop.SECONDS_AT_RISK", 0.0)
    monkeypatch.setattr(checkpoints, "save", lambda folder, made: saved.append(made.step) or real(folder, made))
    train(settings(tmp_path / "run", save_every=500, eval_every=500))
    assert saved == [1, 2, 3, 4, 5, 6]


def test_a_compiled_model_is_saved_under_the_same_names(tmp_path, monkeypatch):
    compiled = []

    def wrapped(function):
        compiled.append(function.__name__)
        return lambda *arguments: function(*arguments)

    monkeypatch.setattr(torch, "compile", wrapped)
    train(settings(tmp_path / "a", compile=True))
    assert compiled == ["_losses"], "the model together with its loss"
    train(settings(tmp_path / "b"))
    toy.assert_same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("training", [True, False], ids=["in a step", "in a validation"])
def test_an_error_in_a_model_loses_no_step(tmp_path, monkeypatch, training):
    train(settings(tmp_path / "whole", save_every=50, eval_every=3))
    forward, calls = toy.ToyNet.forward, []

    def failing(self, batch):
        calls.append(self.training)
        if calls.count(True) == 3 and self.training == training:
            raise MemoryError("too large")
        return forward(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(toy.ToyNet, "forward", failing)
        with pytest.raises(MemoryError):
            train(settings(tmp_path / "run", save_every=50, eval_every=3))
    assert weights(tmp_path / "run")[1]["step"] == (2 if training else 3)
    train({}, resume=str(tmp_path / "run"))
    toy.assert_same(tmp_path / "run", tmp_path / "whole")
