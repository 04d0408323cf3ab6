"""`regard attack` on runs trained for a moment: numbers against the model's own answers, options, figures, messages."""

import json

import pytest
import torch

import regard
from regard_workbench import tasks
from regard_workbench.attacks import attack as attacking
from regard_workbench.attacks.ball import LinfBall
from regard_workbench.training.loading import load
from tests.cli.trained import answered, called


def attacked(capsys, *arguments):
    return answered(capsys, "attack", *arguments)


def test_accuracies_are_those_of_evaluate_before_and_counted_again_after(runs, capsys, monkeypatch):
    points = []
    projected = LinfBall.project
    monkeypatch.setattr(LinfBall, "project", lambda self, given: points.append(projected(self, given)) or points[-1])
    found = attacked(capsys, runs["digits"], "--method", "fgsm", "--eps", "0.05,0.2", "--limit", 61, "--batch-size", 61)
    (run,) = found["runs"]
    whole = answered(capsys, "evaluate", runs["digits"], "--limit", 61)
    measured = next(row["value"] for row in whole["metrics"] if row["metric"] == "accuracy")
    assert run["clean"]["value"] == pytest.approx(measured)
    assert run["data_sha256"] == whole["signature"]["data_sha256"] and run["examples"] == 61
    loaded = load(runs["digits"], device="cpu")
    batch = loaded.task.collate(loaded.task.examples("test")[:61], torch.Generator())
    with torch.no_grad():
        clean = loaded.model(batch).argmax(1) == batch.targets
        for row, pictures in zip(run["rows"], points, strict=True):
            after = loaded.model(tasks.Batch.of(pictures)).argmax(1) == batch.targets
            assert row["accuracy"]["value"] == pytest.approx(float((clean & after).float().mean()))
            assert row["largest"] <= row["eps"]
    assert [row["eps"] for row in run["rows"]] == [0.05, 0.2]
    assert list(run["rows"][0]["moved"]) == ["stack.layers.0.attention"]
    assert 0 < run["rows"][0]["moved"]["stack.layers.0.attention"] < run["rows"][1]["moved"]["stack.layers.0.attention"]


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_restarts_and_steps_do_not_weaken_an_attack(runs, capsys, norm):
    common = (runs["digits"], "--eps", 0.1 if norm == "linf" else 0.4, "--norm", norm, "--limit", 47)
    once = attacked(capsys, *common, "--steps", 1, "--start", "clean")
    more = attacked(capsys, *common, "--steps", 7, "--restarts", 3)
    again = attacked(capsys, *common, "--steps", 7, "--restarts", 3)
    value = [one["runs"][0]["rows"][0]["accuracy"]["value"] for one in (once, more)]
    assert value[1] <= value[0] < once["runs"][0]["clean"]["value"] or value[0] == value[1] == 0
    assert more == again  # random starts come from the seed
    assert more["attack"]["restarts"] == 3 and more["attack"]["norm"] == norm


def test_every_choice_of_places_attacks_as_many_positions(runs, capsys):
    found = attacked(
        capsys, runs["digits"], "--method", "attention", "--places", 3, "--eps", 0.3, "--steps", 5, "--limit", 31
    )
    rows = found["runs"][0]["rows"]
    assert [row["choice"] for row in rows] == ["attention", "random", "gradient"]
    assert {row["places"] for row in rows} == {3}
    assert all(row["largest"] <= 0.3 for row in rows)


@pytest.mark.parametrize("run", ["classify", "classify-encoder"])
def test_texts_are_attacked_by_words_within_their_limit(runs, capsys, run):
    found = attacked(capsys, runs[run], "--words", "1,3", "--limit", 43, "--cosine", -1)
    (one,) = found["runs"]
    values = [row["accuracy"]["value"] for row in one["rows"]]
    assert values[1] <= values[0] < one["clean"]["value"]
    assert [row["words"] for row in one["rows"]] == [1, 3]
    for row in one["rows"]:
        assert row["largest"] <= row["words"] and row["places"] <= row["words"]
        for example in row["examples"]:
            before, after = (example[side].strip("“”").split() for side in ("before", "after"))
            different = sum(a != b for a, b in zip(before, after, strict=True))
            assert 1 <= different <= row["words"] and example["label"] != example["predicted"]


def test_a_share_of_the_words_of_each_text_may_be_given(runs, capsys):
    found = attacked(
        capsys, runs["classify-encoder"], "--eps", 0.3, "--limit", 29, "--method", "attention", "--cosine", -1
    )
    assert {row["choice"] for row in found["runs"][0]["rows"]} == {"attention", "random", "gradient"}
    for row in found["runs"][0]["rows"]:
        for example in row["examples"]:
            before, after = (example[side].strip("“”").split() for side in ("before", "after"))
            assert sum(a != b for a, b in zip(before, after, strict=True)) <= 0.3 * len(before)


def test_runs_are_put_side_by_side_on_the_same_examples(runs, capsys):
    arguments = ("--method", "fgsm", "--eps", 0.1, "--limit", 37)
    found = attacked(capsys, runs["classify"], "--against", runs["classify-encoder"], "--words", 1, "--limit", 37)
    first, second = found["runs"]
    difference = second["rows"][0]["difference"]["value"]
    values = [one["rows"][0]["accuracy"]["value"] for one in (first, second)]
    assert difference == pytest.approx(values[0] - values[1])
    assert first["data_sha256"] == second["data_sha256"] and not found["notes"]
    code, out, _ = called(capsys, "attack", runs["digits"], "--against", runs["digits"], *arguments, "--device", "cpu")
    assert code == 0 and "first − this, points" in out and "+0.0" in out


@pytest.mark.parametrize("run", ["digits", "classify-encoder"])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_figure_shows_an_example_before_and_after(runs, capsys, tmp_path, run, ending):
    path = tmp_path / f"attack.{ending}"
    budget = ("--eps", 0.5, "--steps", 3) if run == "digits" else ("--words", 3, "--cosine", -1)
    attacked(capsys, runs[run], *budget, "--limit", 17, "--figure", path)
    written = path.read_bytes()
    assert written.startswith(b"<?xml" if ending == "svg" else b"\x89PNG") and len(written) > 2000
    code, _, err = called(
        capsys, "attack", runs[run], *budget, "--limit", 2, "--device", "cpu", "--figure", tmp_path / "a.doc"
    )
    assert code == 2 and "--figure" in err and "Try name.svg" in err


@pytest.mark.parametrize(
    ("run", "arguments", "message"),
    [
        ("dates", (), "RUN: expected a classifier, but dates asks for"),
        ("language", (), "RUN: expected a classifier"),
        ("digits", ("--method", "words"), "--method: this run reads pictures"),
        ("digits", ("--eps", "0.1,much"), "--eps: expected numbers joined by commas, got '0.1,much'"),
        ("classify", ("--words", "1.5"), "--words: expected whole numbers joined by commas"),
        ("digits", ("--method", "fgsm", "--steps", "3"), "--steps: fgsm does not use it"),
        ("digits", ("--method", "attention", "--places", "9"), "--places: this run reads 8 positions, got 9"),
        ("digits", ("--limit", "0"), "--limit: expected at least 1, got 0"),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(runs, capsys, run, arguments, message):
    code, out, err = called(capsys, "attack", runs[run], *arguments, "--device", "cpu")
    assert code == 2 and not out and message in err and len(err.splitlines()) == 1


def test_runs_that_read_something_else_are_not_compared(runs, capsys):
    code, _, err = called(capsys, "attack", runs["digits"], "--against", runs["classify"], "--device", "cpu")
    assert code == 2 and "--against: expected runs that read the same, got pictures and texts" in err


def test_numbers_that_are_no_pixels_are_refused(runs, capsys, monkeypatch):
    loaded = load(runs["digits"], device="cpu")
    collate = type(loaded.task).collate

    def darker(self, examples, generator):
        batch = collate(self, examples, generator)
        return tasks.Batch.of(batch.inputs * 2 - 1, targets=batch.targets)

    monkeypatch.setattr(type(loaded.task), "collate", darker)
    code, _, err = called(capsys, "attack", runs["digits"], "--limit", 3, "--device", "cpu")
    assert code == 2 and "expected pixels from 0 to 1, but it reads numbers from -1 to 1" in err


def test_a_model_without_attention_says_so(runs, capsys, monkeypatch):
    monkeypatch.setattr(attacking.places, "attended", lambda *given: None)
    code, _, err = called(capsys, "attack", runs["digits"], "--method", "attention", "--limit", 3, "--device", "cpu")
    assert code == 2 and "--method: encoder has no attention weights over the positions of its input" in err


def test_the_function_gives_what_the_command_prints(runs, capsys):
    report = regard.attack(runs["digits"], "fgsm", eps=[0.1], limit=23, device="cpu")
    printed = attacked(capsys, runs["digits"], "--method", "fgsm", "--eps", "0.1", "--limit", 23)
    assert json.loads(json.dumps(report.to_dict())) == printed
    assert "accuracy under fgsm, 23 examples" in report._repr_html_()
    one = regard.attack(runs["classify-encoder"], words=2, limit=5, device="cpu", against=[runs["classify"]])
    assert [row.level.words for row in one.runs[1].rows] == [2]
