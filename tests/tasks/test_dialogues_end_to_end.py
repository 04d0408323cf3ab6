"""dialogue and respond from training to prediction: a small run learns, is measured, asked and opened in the page."""

import json

import pytest

import regard
from regard_workbench import tasks
from regard_workbench.cli.main import main
from regard_workbench.inspection.inspection import inspect_run
from regard_workbench.training import train
from regard_workbench.viewer.opening.options import ViewOptions
from regard_workbench.viewer.opening.runs import open_run
from tests.tasks.test_woz import turn, written

pytestmark = pytest.mark.slow  # small runs are trained

FOODS, AREAS = ("thai", "greek", "cuban"), ("north", "south")


def talks(count, begin=0):
    """Dialogues that a small model learns in a few steps."""
    found = []
    for number in range(begin, begin + count):
        food, area = ("food", FOODS[number % 3]), ("area", AREAS[number % 2])
        found.append(
            [
                turn(f"{food[1]} food", label=[food], state=[food]),
                turn(f"the {area[1]}", f"{food[1]} where ?", [area], [food, area], ["area"]),
                turn("phone ?", f"it is {food[1]} {area[1]} {number}", [("request", "phone")], [food, area]),
            ]
        )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("talks")
    written(made / "train.json", *talks(30))
    written(made / "val.json", *talks(6, 30))
    written(made / "test.json", *talks(7, 36))
    return made


@pytest.fixture(scope="module")
def tracked(folder):
    settings = {"optim": {"lr": 1e-2, "warmup": 5}, "steps": 40, "batch_size": 6, "eval_every": 20}
    model = "tracker(dim=24, layers=1, num_heads=2, dropout=0.0)"
    run = folder / "tracked"
    where = {"data": [str(folder)], "out": str(run), "device": "cpu"}
    result = train({"task": "dialogue(hide=0.0)", "model": model, **where, **settings}, quiet=True)
    return run, result


@pytest.fixture(scope="module")
def matched(folder):
    settings = {"optim": {"lr": 1e-2, "warmup": 5}, "steps": 30, "batch_size": 10, "eval_every": 30}
    model = "matcher(dim=16, layers=1, num_heads=2, channels=4, dropout=0.0)"
    run, task = folder / "matched", "respond(candidates=5, train_candidates=4)"
    result = train(
        {"task": task, "model": model, "data": [str(folder)], "out": str(run), "device": "cpu", **settings}, quiet=True
    )
    return run, result


def test_a_small_tracker_learns_and_is_measured_with_its_protocol(tracked):
    run, result = tracked
    assert result.best["metric"] == "joint_goal" and result.best["value"] > 0.6
    found = regard.evaluate(run)
    assert found["joint_goal"] > 0.6 and found["turn_goal"] >= found["joint_goal"] and found["request"] > 0.6
    assert "belief_state" in found.protocol["joint_goal"]


def test_a_typed_dialogue_gets_its_goals(tracked, capsys):
    assert main(["predict", str(tracked[0]), "--text", "cuban food | cuban where ? | the south", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    columns = tasks.build("dialogue", data=str(tracked[0].parent)).fitted.slots.columns
    assert found["kind"] == "answer" and len(found["predicted"]) == 2 * columns
    seen = found["attention"]
    assert seen["rows"] == ["area", "food", "request"]
    assert seen["columns"] == ["[user]", "the", "south", "[system]", "cuban", "where", "?"]
    assert [sum(row) for row in seen["weights"]] == pytest.approx([1.0] * 3, abs=1e-3)
    assert main(["predict", str(tracked[0]), "--text", "the south quuxing"]) == 0
    shown, said = capsys.readouterr()
    assert "note: 1 of 3 words are unknown to this run.\n" in said
    assert "→" in shown and "request │" in shown and "Weights of each slot's attention to the turn" in shown
    assert main(["predict", str(tracked[0]), "--text", "cuban food | where ?"]) == 2
    assert "expected an odd number of turns" in capsys.readouterr().err


def test_slots_and_values_stand_beside_the_words_they_attend_to(tracked):
    seen = inspect_run(tracked[0])
    about, mention = seen.attributions[:2]
    assert about.rows == ["area", "food", "request"] and mention.rows[:3] == [
        "area: north",
        "area: south",
        "area: dontcare",
    ]
    assert about.columns == mention.columns and about.columns[0] == "[user]" and "food" in about.columns
    assert about.weights.sum(-1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    opened = open_run(ViewOptions(where=str(tracked[0]), text="the south"), str(tracked[0]), None, print)
    opened.run()
    assert opened.labels["goals"] == ["area", "food", "request"]
    assert opened.labels["tokens"] == ["[user]", "the", "south", "[system]"]


def test_a_page_of_a_tracker_names_its_rows(tracked, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["view", str(tracked[0]), "--text", "the south", "--export", str(page), "--device", "cpu"]) == 0
    assert '"rows":"goals","columns":"tokens"' in page.read_text()


def test_a_small_matcher_learns_and_is_measured_beside_the_yardstick(matched):
    run, result = matched
    assert result.best["metric"] == "recall_at_1" and result.best["value"] > 0.3, "a fifth by chance"
    found = regard.evaluate(run)
    named = {row.metric for row in found.metrics}
    assert {"recall_at_1", "recall_at_2", "recall_at_5", "mrr", "tfidf_recall_at_1", "tfidf_mrr"} <= named
    assert found["recall_at_5"] == found["tfidf_recall_at_5"] == 1.0 and "1 in 5" in found.protocol["replies"]


def test_a_chat_with_a_matcher_replies_with_what_it_knows(matched, monkeypatch, capsys):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("thai food\n"))
    assert main(["chat", str(matched[0]), "--json", "--device", "cpu"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = tasks.build("respond", data=str(matched[0].parent))
    known.examples("train")
    assert found["output"] in known.fitted.offered
    seen = found["attention"]
    assert seen["rows"] == ["[reply]", *found["output"].split()] and seen["columns"] == ["[user]", "thai", "food"]
    assert [sum(row) for row in seen["weights"]] == pytest.approx([1.0] * len(seen["rows"]), abs=1e-3)


def test_a_turn_and_a_reply_stand_beside_each_other(matched):
    seen = inspect_run(matched[0])
    to_turn, to_reply = seen.attributions[:2]
    assert to_reply.rows == to_turn.columns and to_reply.columns == to_turn.rows
    assert to_reply.rows[0] == "[user]" and to_reply.columns[0] == "[reply]"
    opened = open_run(ViewOptions(where=str(matched[0])), str(matched[0]), None, print)
    opened.run()
    assert opened.labels["reply"][0] == "[reply]"


@pytest.mark.nightly
def test_a_comparison_takes_both_forms_of_the_matcher(folder, tmp_path):
    plain = "matcher(dim=8, layers=1, num_heads=2, channels=2)"
    options = ["--steps", "2", "--seeds", "1", "--batch-size", "4", "--device", "cpu", "--out", str(tmp_path / "out")]
    task = "respond(candidates=5, train_candidates=3)"
    models = f"{plain},{plain[:-1]}, exchange=true)"
    assert main(["compare", task, "--models", models, "--data", str(folder), *options]) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(rows) == 2 and all("recall_at_1" in row["test"] for row in rows)
