"""`regard predict` shows what a reply attended to, and which pieces of a translation are not aligned one to one."""

import json

import pytest
import torch

from regard_workbench.tasks.measures.alignments import not_one_to_one, unusual_words
from regard_workbench.training import train
from regard_workbench.training.loading import load
from tests.cli.trained import answered, called

SMALL = {"batch_size": 3, "eval_limit": 4, "eval_every": 2, "steps": 2, "device": "cpu"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    home = tmp_path_factory.mktemp("attended")
    models = {
        "reply": "decoder(dim=16, layers=2, num_heads=2)",
        "align": "seq2seq(dim=16, feeding=none, attention='multihead(sink=true)')",
    }
    for name, model in models.items():
        train({**SMALL, "task": name, "model": model, "out": str(home / name)}, quiet=True)
    return home


def test_words_that_are_not_aligned_one_to_one_are_those_named_by_hand():
    # sources 0 1 2, targets 0 … 5: 0 and 3 come from one word, 1 and 2 cross, 4 crosses nothing, 5 comes from none
    links = {(0, 0), (0, 3), (2, 1), (1, 2), (2, 4)}
    found = unusual_words(links, 6)
    assert found["null"] == [5] and found["one to many"] == [0, 1, 3, 4]
    # (2,1) crosses (1,2) and (0,3); (1,2) crosses (0,3)
    assert found["reordered"] == [1, 2, 3]
    assert not_one_to_one(links, 6) == {"null": 1.0, "one to many": 4.0, "reordered": 3.0, "words": 6.0}


def test_the_null_word_of_a_translation_has_the_weight_that_the_sink_takes(runs, capsys):
    text = "young bird finds tree and dog"
    (found,) = answered(capsys, "predict", runs / "align", "--text", text)
    seen = found["alignment"]
    assert len(seen["null"]) == len(seen["rows"]) and max(seen["null"]) > 0.01
    for row, rest in zip(seen["weights"], seen["null"], strict=True):
        assert sum(row) + rest == pytest.approx(1, abs=1e-3)
    null = [at for at, row in enumerate(seen["weights"]) if seen["null"][at] > max(row)]
    assert seen["not_one_to_one"]["null"] == null
    code, out, _ = called(capsys, "predict", runs / "align", "--text", text, "--device", "cpu")
    assert code == 0 and "Not aligned one to one: " in out


@pytest.mark.parametrize("given", [("--text", "i want thai food in the north"), ("--example", "3")])
def test_a_reply_that_continues_its_turns_shows_what_each_word_attended_to(runs, given, capsys, tmp_path):
    run = runs / "reply"
    (found,) = answered(capsys, "predict", run, *given)
    seen = found["attention"]
    loaded = load(str(run), None, "cpu")
    if given[0] == "--text":
        example = loaded.task.parse({"text": given[1]})
    else:
        example = loaded.task.unanswered(loaded.task.examples("test")[3])
        assert example.target is None
    prompt = loaded.task.collate([example], torch.Generator()).inputs
    written = len(seen["rows"])
    assert len(seen["columns"]) == prompt.shape[1] + len(found["tokens"])
    for place, row in enumerate(seen["weights"]):  # a word sees what was there when it was written, and no later one
        before = prompt.shape[1] + place
        assert sum(row[:before]) == pytest.approx(1, abs=1e-3) and not any(row[before:])
    assert written == len([token for token in found["tokens"] if token != loaded.task.problem.answer.end])
    figure = tmp_path / "reply.svg"
    assert called(capsys, "predict", run, *given, "--figure", figure, "--device", "cpu")[0] == 0
    assert figure.stat().st_size > 2000


def test_a_chat_with_a_decoder_names_the_same_weights_as_predict(runs, capsys, monkeypatch):
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.StringIO("i want thai food in the north\n"))
    code, out, err = called(capsys, "chat", runs / "reply", "--json", "--device", "cpu")
    assert code == 0, err
    (found,) = answered(capsys, "predict", runs / "reply", "--text", "i want thai food in the north")
    assert json.loads(out)["attention"] == found["attention"]
