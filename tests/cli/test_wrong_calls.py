"""A wrong call: one line of our own with exit code 2, in words that can be typed. Help: what there is, at any width."""

import re

import pytest

from regard_workbench import models, tasks
from regard_workbench.cli.common.command import verbs
from regard_workbench.cli.main import main
from tests.training.registered import toy_registered  # noqa: F401


def called(capsys, *arguments):
    try:
        code = main(list(map(str, arguments)))
    except SystemExit as stop:
        code = stop.code
    shown = capsys.readouterr()
    return code, shown.out, shown.err


NEEDED = {
    "cause": ["RUN"],
    "evaluate": ["RUN"],
    "predict": ["RUN"],
    "view": ["RUN"],
    "show": ["local"],
    "train": ["toy"],
}


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_answers_an_unknown_option_with_one_line(capsys, verb):
    code, out, err = called(capsys, verb, *NEEDED.get(verb, []), "--jsn")
    assert (code, out) == (2, "")
    hint = "" if verb == "completion" else " Did you mean '--json'?"  # its output is a script
    assert err == f"regard {verb}: --jsn: there is no such option.{hint}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bogus", "regard: --bogus: there is no such option."),
        ("trian", "regard: VERB: there is no 'trian'. Did you mean 'train'? Known: attack, bench, cache, cause, chat,"),
        ("train toy --stps 5 --modle x", "--stps: there is no such option. Did you mean '--steps'?"),
        ("train toy --stps 5 --modle x", "--modle: there is no such option. Did you mean '--model'?"),
        ("train toy --optim 5", "--optim: there is no such option. It has parts: --optim.optimizer, --optim.lr,"),
        ("train toy --optim.lrr 5", "--optim.lrr: there is no such option. Did you mean '--optim.lr'?"),
        ("train toy --optim.lr.x 5", "--optim.lr.x: there is no such option."),
        ("train toy --lr 5", "--lr: there is no such option. Did you mean '--optim.lr'?"),
        ("train toy --weight_decya 5", "Did you mean '--optim.weight-decay'?"),
        ("train toy --optim.lr", "--optim.lr: expected a value after it, got none. Meaning: peak learning rate"),
        ("train toy --optim.lr high", "--optim.lr: expected a finite number of at least 0, got 'high'."),
        ("train toy --batch_size 0", "--batch-size: expected a whole number of at least 1, got '0'."),
        ("train toy --keep some", "--keep: expected all, a whole number of at least 1"),
        ("train toy --compile=maybe", "--compile: it takes no value, got 'maybe'."),
        ("train toy extra", "'extra' is one argument too many."),
        ("train toy --steps 5 --budget 9s", "--steps, --budget: expected one of them"),
        ("train toy((", "TASK: expected NAME or NAME(option=value"),
        ("train toy --model ((", "--model: expected NAME or NAME(option=value"),
        ("train", "TASK: name the task to train"),
        ("train toy --init-from nowhere", "--init-from: there is no run in nowhere"),
        ("train toy --size 3", '--size: there is no such option. It belongs to the task: "toy(size=3)".'),
        ("train toy --dim 5", '--dim: there is no such option. It belongs to the model: --model "toy-net(dim=5)".'),
        ("train toy --model.dim 5", 'It belongs to the model: --model "toy-net(dim=5)".'),
        ("train toy(size=47) --poison 0.5", 'It belongs to the task: "toy(size=47, poison=0.5)".'),
        ("view", "RUN is missing. Meaning: the folder of a run"),
        ("view x --port abc", "--port: expected a whole number, got 'abc'."),
        ("view x --generate", "--generate: expected a value after it, got none."),
        ("predict x --temperature hot", "--temperature: expected a number, got 'hot'."),
        ("predict nowhere --text a", "RUN: there is no run here: 'nowhere'"),
        ("evaluate x --split foo", "--split: there is no 'foo'. Known: train, validation, test."),
        ("evaluate x --batch-size=", "--batch-size: expected a whole number, got ''."),
        ("compare toy --sweep few", "--sweep: expected a whole number, got 'few'."),
        ("bench --seconds soon", "--seconds: expected a number, got 'soon'."),
        ("list kinds", "KIND: there is no 'kinds'."),
        ("show", "NAME is missing."),
        ("list --use", "--use: expected a Python file after it, got none."),
    ],
)
def test_a_wrong_call_is_answered_in_one_line(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, *words.split(" "))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1 and "usage:" not in err
    assert not list(tmp_path.iterdir())


def test_a_value_with_spaces_is_repeated_whole_in_messages(capsys):
    err = called(capsys, "train", "toy", "--metric", "an odd one")[2]
    assert "toy(metric='an odd one')" in err


def test_a_setting_from_a_file_keeps_its_name_and_one_that_was_typed_is_an_option(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("task: toy\nbatch_size: few\n")
    err = called(capsys, "train", "--config", tmp_path / "c.yaml", "--eval-every", "often")[2]
    assert "  batch_size: expected" in err and "  --eval-every: expected" in err


def test_an_option_of_the_task_is_not_taken_for_one_of_the_command(capsys):
    err = called(capsys, "train", "classify(seed=x)", "--steps", 1)[2]
    assert err.startswith("regard train: seed: classify takes a whole number, got 'x'")


def test_a_refused_change_on_resume_names_the_option(tmp_path, capsys):
    assert called(capsys, "train", "toy", "--steps", 1, "--out", tmp_path / "run")[0] == 0
    code, _, err = called(capsys, "train", "--resume", tmp_path / "run", "--batch-size", 7, "--seed", 3)
    assert code == 2
    assert "--batch-size: " in err and "--seed: " in err and "was started with" in err


@pytest.mark.parametrize("verb", [None, *sorted(verbs())])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_wraps_at_the_width_of_the_terminal(monkeypatch, capsys, verb, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = called(capsys, *([] if verb is None else [verb]), "--help")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    for example in () if verb is None else verbs()[verb].EXAMPLES:  # a broken line is continued as a shell reads it
        assert example in re.sub(r" \\\n +", " ", out)


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_help_lists_tasks_and_models(capsys, verb):
    out = " ".join(called(capsys, verb, "--help")[1].split())
    assert f"tasks: {', '.join(tasks.names())}" in out
    assert f"models: {', '.join(models.names())}" in out
    assert "SOURCE,TARGET (what is read, what is written)" in out
