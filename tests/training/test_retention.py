"""`--keep`: which checkpoints are kept."""

import pytest

from regard.errors import BadValue
from regard_workbench.training import train
from regard_workbench.training.config.recipe import complete
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.run_folder import checkpoints
from tests.training.registered import toy_registered  # noqa: F401
from tests.training.toy import assert_same

SETTINGS = {"task": "toy", "steps": 11, "save_every": 2, "eval_every": 50, "device": "cpu"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [("all", Keep(None)), ("3", Keep(3)), (5, Keep(5)), ("every:70", Keep(2, 70)), (" every:7 ", Keep(2, 7))],
)
def test_a_rule_is_parsed(text, rule):
    assert Keep.parse(text) == rule
    assert Keep.parse(str(rule)) == rule


@pytest.mark.parametrize("text", ["", "0", "-1", "none", "every", "every:", "every:0", "1.5", True, None, "all:3"])
def test_an_invalid_rule_is_refused_with_the_three_forms(text):
    with pytest.raises(BadValue, match=r"all, a whole number .* every:N"):
        Keep.parse(text)
    if text is not None:
        with pytest.raises(BadValue, match=r"keep: expected all, .* every:N"):
            complete({"task": "toy", "keep": text})


def kept_by(tmp_path, **settings):
    out = tmp_path / "run"
    result = train({**SETTINGS, "out": str(out), **settings})
    return sorted(map(checkpoints.step_of, checkpoints.paths(out / "checkpoints"))), result


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        (None, [10, 11]),
        ("1", [11]),
        ("3", [8, 10, 11]),
        ("all", [0, 2, 4, 6, 8, 10, 11]),
        ("every:3", [0, 3, 6, 9, 10, 11]),
        ("every:4", [0, 4, 8, 10, 11]),
    ],
)
def test_a_run_keeps_what_the_rule_says_and_the_best(tmp_path, rule, steps):
    found, result = kept_by(tmp_path, **({} if rule is None else {"keep": rule}))
    assert result.best["step"] == 11  # the only validation is that of the end
    assert found == steps


@pytest.mark.parametrize("steps", [11, 13])
def test_what_a_killed_process_did_not_delete_goes_with_the_next_resume(tmp_path, monkeypatch, steps):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "keep", lambda *words: None)  # the kill
        found, _ = kept_by(tmp_path)
    assert found == [2, 4, 6, 8, 10, 11]
    train({"steps": steps}, resume=str(tmp_path / "run"))
    left = sorted(map(checkpoints.step_of, checkpoints.paths(tmp_path / "run" / "checkpoints")))
    assert left == {11: [10, 11], 13: [11, 12, 13]}[steps]  # 11 was validated; so is 13


def test_the_best_is_kept_by_every_rule(tmp_path, monkeypatch):
    from regard_workbench.training.loop import Position

    def only_the_first(self, value, higher_is_better, loss=None):
        if self.best_step is not None:
            return False
        self.best, self.best_step = value, self.step
        return True

    monkeypatch.setattr(Position, "validated", only_the_first)
    assert kept_by(tmp_path, keep="1", eval_every=3)[0] == [3, 11]


def test_keeping_more_changes_no_weight_and_survives_a_resume(tmp_path):
    train({**SETTINGS, "out": str(tmp_path / "plain")})
    kept_by(tmp_path, keep="all", steps=5)
    found, _ = kept_by(tmp_path / "other", keep="every:2")
    assert_same(tmp_path / "other" / "run", tmp_path / "plain")
    assert found == [0, 2, 4, 6, 8, 10, 11]
    run = tmp_path / "run"
    train({"steps": 7}, resume=str(run))
    assert sorted(map(checkpoints.step_of, checkpoints.paths(run / "checkpoints"))) == [0, 2, 4, 5, 6, 7]
