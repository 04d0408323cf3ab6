"""The line that tells a number from every other."""

import re

from regard_workbench.comparison.signature import signature
from tests.comparison.made_up import outcome


def parts(line):
    """Read a signature back, by its rules alone."""
    found = {}
    for part in re.split(r"(?<!\\)(?:\\\\)*\|", line):
        name, _, value = part.partition(":")
        found[name] = re.sub(r"\\(.)", r"\1", value)
    return found


def line(outcomes=None, **changes):
    given = {"task": "digits", "model": "encoder", "attention": "multihead", "budget": "1,000 steps"}
    outcomes = [outcome("encoder", seed, 0.9) for seed in (0, 1, 2)] if outcomes is None else outcomes
    return signature(outcomes, **{**given, **changes})


def changed(**settings):
    base = {"task": "digits", "model": "encoder", "attention": None, "seed": 0, "steps": 1000}
    return [outcome("encoder", 0, 0.9, settings={**base, **settings})]


def test_the_line_of_the_default_comparison():
    assert line() == (
        "task:digits|model:encoder|attention:multihead|seeds:0,1,2|budget:1,000 steps|batch:32|lr:0.001|"
        "data:1a2b3c4d|regard:0.1.0|torch:2.13.0|device:cpu"
    )


def test_whatever_changes_a_number_changes_the_line():
    lines = [
        line(changed(**settings))
        for settings in (
            {},
            {"optim.lr": 3e-4},
            {"batch_size": 64},
            {"optim.warmup": 7},
            {"precision": "bf16-mixed"},
            {"patience": 3},
            {"optim.betas": [0.9, 0.95]},
            {"accumulate": 2},
            {"eval_every": 17},
            {"init_from": "runs/a"},
            {"optim.schedule": "constant"},
        )
    ]
    lines += [line(budget="2,000 steps"), line(attention="local"), line(trials=20), line(model="decoder")]
    lines += [line([outcome("encoder", 0, 0.9, data_sha256="f" * 64)])]
    lines += [line([outcome("encoder", 0, 0.9, beam=5)])]
    assert len(set(lines)) == len(lines)


def test_settings_without_influence_are_not_in_the_signature():
    usual = line(changed())
    assert line(changed(out="elsewhere", name="a", log_every=3, save_every=7)) == usual
    assert line(changed(batch_size=32)) == usual  # the recipe's own, said aloud


def test_the_signature_has_file_names_without_folders():
    found = parts(
        line(
            [
                outcome(
                    "encoder",
                    0,
                    0.9,
                    settings={"task": "classify", "data": ["/somewhere/train.tsv", "/somewhere/test.tsv"], "seed": 0},
                )
            ]
        )
    )
    assert found["files"] == "train.tsv,test.tsv"


def test_a_separator_inside_a_value_cannot_end_it():
    hostile = "a|b:c\\|d\ne"
    found = parts(line(model=hostile))
    assert found["model"] == "a|b:c\\|d e"
    assert list(found)[:4] == ["task", "model", "attention", "seeds"] and "\n" not in line(model=hostile)


def test_runs_that_differ_in_data_or_machine_show_it():
    runs = [outcome("encoder", 0, 0.9), outcome("encoder", 1, 0.9, data_sha256="f" * 64)]
    assert parts(line(runs))["data"] == "1a2b3c4d,ffffffff"


def test_bleu_brings_its_own_signature():
    bleu = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
    found = parts(line([outcome("encoder", 0, 0.9, protocol={"bleu": bleu})]))
    assert found["bleu"] == bleu


def test_a_row_without_a_finished_run_still_has_a_line():
    assert line([]) == "task:digits|model:encoder|attention:multihead|budget:1,000 steps"
