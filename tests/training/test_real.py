"""Real tasks with tiny models: they train, resume bit for bit, and initialise other runs."""

import shutil

import pytest
import torch

from regard_workbench.tasks import HiddenTokens, OneOf
from regard_workbench.training import evaluate, load_run, train
from regard_workbench.training.run_folder import checkpoints
from tests.training.toy import assert_same

TINY = [
    ("digits", "encoder(dim=8, layers=1, num_heads=2)"),
    ("dates(validation_size=7, test_size=7)", "seq2seq(dim=8)"),
    ("dates(validation_size=7, test_size=7)", "transformer(dim=8, layers=1, num_heads=2)"),
    ("copy(max_length=3)", "ntm(slots=5, width=4)"),
    ("language(context=16)", "decoder(dim=8, layers=1, num_heads=2)"),
]


def settings(folder, task, model, **changes):
    return {
        "task": task,
        "model": model,
        "steps": 4,
        "accumulate": 2,
        "batch_size": 3,
        "save_every": 2,
        "eval_every": 4,
        "eval_limit": 6,
        "device": "cpu",
        "out": str(folder),
        **changes,
    }


@pytest.mark.parametrize(("task", "model"), TINY, ids=lambda text: text.partition("(")[0])
def test_a_real_run_resumes_bit_for_bit(tmp_path, task, model):
    train(settings(tmp_path / "whole", task, model))
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    train({}, resume=str(tmp_path / "again" / "checkpoints" / checkpoints.name_of(2)))
    assert_same(tmp_path / "again", tmp_path / "whole")


def test_a_loaded_run_measures_the_same_metrics(tmp_path):
    result = train(settings(tmp_path / "run", *TINY[0]))
    task, model, config = load_run(tmp_path / "run")
    found = evaluate(task, model, batch_size=3, limit=6, seed=config.seed)
    assert found == pytest.approx(result.metrics)


def test_an_encoder_trained_on_hidden_words_initialises_a_classifier(tmp_path):
    told, small = [], "encoder(dim=8, layers=1, num_heads=2)"
    train(settings(tmp_path / "blanks", "language(level=word, context=12)", small))
    task, model, _ = load_run(tmp_path / "blanks")
    assert isinstance(task.problem.answer, HiddenTokens)
    train(
        settings(tmp_path / "classes", "classify", small, steps=0, init_from=str(tmp_path / "blanks")), tell=told.append
    )
    later, classifier, _ = load_run(tmp_path / "classes")
    assert isinstance(later.problem.answer, OneOf)
    assert later.state()["vocabulary"] == task.state()["vocabulary"]
    kept, new = model.state_dict(), classifier.state_dict()
    shared = [name for name in kept if name in new and kept[name].shape == new[name].shape]
    assert len(shared) > 10
    assert all(torch.equal(kept[name], new[name]) for name in shared)
    assert any("took " in text and "vocabulary" in text for text in told)


def test_a_run_resumes_with_the_command_that_started_it(tmp_path):
    """A bare model name means the same as at the start: what the task's recipe says."""
    values = {
        "task": "dates",
        "model": "transformer",
        "steps": 1,
        "batch_size": 2,
        "eval_limit": 2,
        "out": str(tmp_path / "run"),
        "device": "cpu",
    }
    assert train(values, quiet=True).steps == 1
    assert train({**values, "steps": 2}, resume="auto", quiet=True).steps == 2
    assert load_run(tmp_path / "run")[2].model == "transformer(layers=2, dim=96, dropout=0.0)"
