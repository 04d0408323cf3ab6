"""Budgets: how they are parsed, how much is used up, and runs that end with them, resumed or not."""

import math

import pytest
import torch

from regard.errors import BadValue
from regard_workbench.tasks import Batch, NextToken, Problem, Tokens, Writes
from regard_workbench.training import Config, optim, train
from regard_workbench.training.config import Optim
from regard_workbench.training.config.budget import Budget, parse
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.data import token_count
from regard_workbench.training.dry_run import dry_run
from regard_workbench.training.loop import Position
from regard_workbench.training.progress import Display
from regard_workbench.training.run_folder import checkpoints, metrics_file
from tests.training.toy import assert_same, weights


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("2000steps", "steps", 2000),
        ("2000 steps", "steps", 2000),
        ("1 step", "steps", 1),
        ("0 steps", "steps", 0),
        ("2k steps", "steps", 2000),
        ("5Mtokens", "tokens", 5_000_000),
        ("5e6 tokens", "tokens", 5_000_000),
        (" 1.5M tokens ", "tokens", 1_500_000),
        ("2B tokens", "tokens", 2 * 10**9),
        ("7_000 tokens", "tokens", 7000),
        ("90s", "seconds", 90),
        ("90 seconds", "seconds", 90),
        ("5min", "seconds", 300),
        ("1.5 h", "seconds", 5400),
        ("0.25 sec", "seconds", 0.25),
    ],
)
def test_a_budget_is_parsed(text, kind, amount):
    found = parse(text)
    assert (found.kind, found.amount) == (kind, amount)
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "2000",
        "tokens",
        "5M",
        "5m",
        "5 bananas",
        "-3 steps",
        "1.5 steps",
        "0.3 tokens",
        "0 tokens",
        "0s",
        "1e999 s",
        "",
        "5 tokens 3",
        2000,
        None,
        True,
    ],
)
def test_an_invalid_budget_is_refused_with_examples(text):
    with pytest.raises(BadValue, match=r"^budget: expected .* got .*5M tokens|^budget: expected .*5M tokens.* got"):
        parse(text)


def test_a_mistake_in_the_settings_names_the_budget():
    with pytest.raises(BadValue, match=r"budget: expected a number with a unit.*got '90'"):
        complete({"task": "toy", "budget": "90"})


def test_a_budget_in_steps_is_steps():
    assert complete({"task": "toy", "budget": "40 steps"}) == complete({"task": "toy", "steps": 40})
    assert complete({"task": "toy", "budget": "40 steps", "steps": 40}).steps == 40


@pytest.mark.parametrize("budget", ["41 steps", "40 tokens", "40s"])
def test_steps_and_another_budget_are_refused_by_name(budget):
    with pytest.raises(BadValue, match="steps, budget: expected one of them, got steps 40 and budget '4"):
        complete({"task": "toy", "budget": budget, "steps": 40})


def test_a_budget_leaves_the_steps_open_and_is_completed_once():
    config = complete(Config(task="toy", budget="5 min"))
    assert (config.steps, config.budget) == (None, "300 seconds")
    assert (config.eval_every, config.save_every, config.log_every) == (1000, 1000, 10)
    assert complete(config) == config


def test_the_share_goes_from_zero_to_one():
    position = Position(step=30, tokens=500, seconds=9.0)
    assert Budget("steps", 120).share(position) == 0.25
    assert Budget("tokens", 1000).share(position) == 0.5
    assert Budget("seconds", 12.0).share(position) == 0.75
    assert Budget("seconds", 3.0).share(position) == 1.0
    assert Budget("steps", 0).share(Position()) == 1.0 and Budget("steps", 0).ends(Position())
    assert not Budget("tokens", 501).ends(position) and Budget("tokens", 500).ends(position)


@pytest.mark.parametrize("schedule", ["cosine", "inverse-root", "constant"])
def test_at_a_constant_speed_the_learning_rate_is_that_of_as_many_steps(schedule):
    settings = Optim(lr=0.7, warmup=5, schedule=schedule)
    for step in range(23):
        position = Position(step=step, tokens=40 * step, seconds=0.5 * step)
        want = optim.rate(settings, step, 23)
        for budget in (Budget("tokens", 40 * 23), Budget("seconds", 11.5)):
            assert optim.rate(settings, step, budget.expected_steps(position)) == pytest.approx(want, rel=1e-12)


def test_the_learning_rate_falls_to_zero_at_any_speed():
    settings = Optim(lr=1.0, warmup=2, schedule="cosine")
    used = [0.0, 30.0, 31.0, 33.0, 60.0, 61.0, 98.0, 99.999]
    rates = []
    for step, seconds in enumerate(used):
        expected = Budget("seconds", 100.0).expected_steps(Position(step=step, seconds=seconds))
        rates.append(optim.rate(settings, step, expected))
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[2:] == sorted(rates[2:], reverse=True) and rates[-1] < 1e-6
    # 60 % used at step 4; at the speed so far, the two warm-up steps took half of that
    assert rates[4] == pytest.approx(0.5 * (1 + math.cos(math.pi * (0.6 - 0.3) / (1 - 0.3))))


def test_tokens_are_real_positions_of_both_sides_of_a_translation():
    keep = torch.tensor([[True, True, False], [True, False, False]])
    targets, target_keep = torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4, dtype=torch.bool)
    target_keep[0, 3] = False
    batch = Batch.of(torch.zeros(2, 3, dtype=torch.long), keep, targets, target_keep)
    kinds = {
        "language": Problem.of(Tokens(5, length=3), NextToken(5)),
        "translate": Problem.of(Tokens(5, length=3), Writes(5, 4, start=1, end=2)),
    }
    assert token_count(batch, kinds["language"]) == 3
    assert token_count(batch, kinds["translate"]) == 3 + 7
    bare = Batch.of(torch.zeros(2, 3, dtype=torch.long), targets=targets)
    assert token_count(bare, kinds["language"]) == 6
    assert token_count(bare, kinds["translate"]) == 6 + 8
    assert token_count(Batch.of(torch.zeros(2, 3, 9)), kinds["language"]) == 6


def settings(folder, **changes):
    return {
        "task": "toy",
        "batch_size": 4,
        "accumulate": 2,
        "log_every": 1,
        "device": "cpu",
        "out": str(folder),
        **changes,
    }


def test_a_run_with_a_budget_in_tokens_validates_at_each_tenth(tmp_path):
    result = train(settings(tmp_path / "run", budget="2k tokens"), quiet=True)
    assert result.stopped_by == "budget" and result.exit_code == 0
    records = metrics_file.read(tmp_path / "run" / "metrics.jsonl")
    used = [record["tokens"] for record in records]
    assert used == sorted(used) and used[-2] < 2000 <= used[-1] == result.tokens
    tenths = {
        min(10, 10 * tokens // 2000): record["step"] for tokens, record in reversed([*zip(used, records, strict=True)])
    }
    tenths.pop(0, None)
    assert [record["step"] for record in records if "validation" in record] == sorted(tenths.values())
    assert len(tenths) == 10 and records[-1]["validation"] == result.metrics
    assert records[-1]["lr"] < 0.05 * max(record["lr"] for record in records)


def test_tokens_add_up_over_the_batches_of_the_steps(tmp_path):
    """One epoch counts each real position once and no padding; the toy's rows have known lengths."""
    from tests.training.toy import Toy

    train(settings(tmp_path / "run", steps=11, batch_size=4, accumulate=1), quiet=True)
    lengths = sum(len(row) for row, _ in Toy().examples("train"))
    assert weights(tmp_path / "run")[1]["tokens"] == lengths  # 43 examples in 11 batches


def test_steps_between_validations_still_count(tmp_path):
    train(settings(tmp_path / "run", budget="500 tokens", eval_every=1), quiet=True)
    assert all("validation" in record for record in metrics_file.read(tmp_path / "run" / "metrics.jsonl"))


def test_a_run_with_a_budget_in_seconds_ends_with_it(tmp_path):
    result = train(settings(tmp_path / "run", budget="0.3s"), quiet=True)
    records = metrics_file.read(tmp_path / "run" / "metrics.jsonl")
    assert result.stopped_by == "budget" and result.seconds >= 0.3
    assert records[-2]["seconds"] <= 0.3 and records[-1]["validation"]
    again = train({}, resume=str(tmp_path / "run"), quiet=True)
    assert (again.steps, again.stopped_by) == (result.steps, "budget")


def test_an_interrupted_run_with_a_budget_in_tokens_ends_the_same(tmp_path, monkeypatch):
    train(settings(tmp_path / "whole", budget="1500 tokens"), quiet=True)
    import regard_workbench.training.loop as trainer

    real, calls = trainer.evaluate, 0

    def cut_short(*given, **options):
        """Every second validation is stopped by a signal, as `evaluate` tells it."""
        nonlocal calls
        calls += 1
        if calls % 2:
            signals = options["stop"].__self__.signals
            signals.received = 15
        return real(*given, **options)

    monkeypatch.setattr(trainer, "evaluate", cut_short)
    values, runs = settings(tmp_path / "run", budget="1500 tokens"), 1
    while train(values, resume="auto", quiet=True).stopped_by == "SIGTERM":
        runs += 1
    assert runs > 5
    assert_same(tmp_path / "run", tmp_path / "whole")
    lines = [metrics_file.read(tmp_path / name / "metrics.jsonl") for name in ("run", "whole")]
    clock = {"seconds": 0, "steps_per_second": 0}
    assert [{**r, **clock} for r in lines[0]] == [{**r, **clock} for r in lines[1]]


def test_seconds_add_up_over_resumes(tmp_path):
    first = train(settings(tmp_path / "run", steps=3), quiet=True)
    more = train({"budget": f"{first.seconds + 0.2} s"}, resume=str(tmp_path / "run"), quiet=True)
    assert more.stopped_by == "budget" and more.seconds >= first.seconds + 0.2
    assert train({"steps": more.steps + 2}, resume=str(tmp_path / "run"), quiet=True).stopped_by == "steps"


def test_a_checkpoint_without_a_token_count_still_loads(tmp_path):
    train(settings(tmp_path / "run", steps=2), quiet=True)
    (path, *_) = checkpoints.paths(tmp_path / "run" / "checkpoints")
    made = checkpoints.load(path)
    del made.state["progress"]["tokens"]
    checkpoints.save(path.parent, made)
    assert train({"steps": 3}, resume=str(tmp_path / "run"), quiet=True).tokens > 0


def test_a_dry_run_estimates_steps_from_tokens_but_not_from_seconds(tmp_path):
    found = dry_run(settings(tmp_path / "run", task="digits", model="encoder", budget="12800 tokens"))
    assert (found["tokens_per_step"], found["steps"], found["budget"]) == (64, 200, "12800 tokens")
    found = dry_run(settings(tmp_path / "run", budget="90s"))
    assert found["budget"] == "90 seconds" and "steps" not in found and "epochs" not in found


def test_a_fast_dev_run_takes_one_step_with_any_budget():
    assert train({"task": "toy", "budget": "2 hours"}, fast_dev_run=True, quiet=True).steps == 1


def test_progress_lines_show_the_used_budget(capsys):
    for budget, want in (
        (Budget("steps", 8), "step 2/8  loss 1.5000  7 steps/s"),
        (Budget("tokens", 4000), "step 2 (1,000 of 4,000 tokens)  loss 1.5000  7 steps/s"),
        (Budget("seconds", 0.5), "step 2 (0 of 0.5 seconds)  loss 1.5000  7 steps/s"),
    ):
        position = Position()
        display = Display(budget, position)
        position.step, position.tokens, position.seconds = 2, 1000, 0.125
        display.step(1.5, 7.0)
        line = capsys.readouterr().err
        assert line.startswith(want) and line.rstrip().endswith("0:00:00 left")


def test_a_bar_fills_with_the_share(monkeypatch):
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    position = Position(tokens=100)
    display = Display(Budget("tokens", 400), position)
    try:
        assert display.bar.tasks[0].percentage == 25
        position.tokens = 300
        display.step(1.5, 7.0)
        assert display.bar.tasks[0].percentage == 75
    finally:
        display.close()
