"""Completions stand in metrics.jsonl, in the results of a comparison and in an evaluation, by their names."""

import json

import pytest
import torch

import regard
from regard_workbench import models, tasks
from regard_workbench.comparison.job import Contestant, Job
from regard_workbench.comparison.worker import perform
from regard_workbench.tasks.measures import completion
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.training.evaluation import completions
from regard_workbench.training.loading import load

TASK, SMALL = "language(level=word, context=17)", "decoder(dim=16, layers=1, num_heads=2)"
NAMES = {metric.name for metric in completion.CONTINUED}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    book = tmp_path_factory.mktemp("book") / "book.txt"
    book.write_text("".join(f"the {n % 7} cats of house {n % 11} sleep .\n" for n in range(260)))
    return regard.train(
        TASK, model=SMALL, data=book, steps=3, out=book.parent / "run", eval_every=1, quiet=True, device="cpu"
    )


def test_the_last_validation_completes_and_the_ones_before_do_not(trained):
    lines = [json.loads(line) for line in (trained.folder / "metrics.jsonl").read_text().splitlines()]
    assert [set(line["validation"]) >= NAMES for line in lines] == [False, False, True]
    last = lines[-1]["validation"]
    assert 0 <= last["completion_accuracy"] <= 1 and last["completion_nll"] > 0
    assert set(trained.metrics) >= NAMES


def test_an_evaluation_of_some_examples_completes_no_more(trained):
    """All of up to a thousand texts were completed, whatever --limit said."""
    few = {one.metric: one for one in regard.evaluate(trained, "test", limit=2, device="cpu").metrics}
    every = {one.metric: one for one in regard.evaluate(trained, "test", device="cpu").metrics}
    assert 0 < few["completion_nll"].count < every["completion_nll"].count


def test_a_run_of_a_comparison_is_asked_to_complete_and_a_trial_is_not(trained, tmp_path):
    settings = {
        "task": TASK,
        "model": SMALL,
        "data": [str(trained.folder.parent / "book.txt")],
        "steps": 2,
        "seed": 0,
        "device": "cpu",
    }
    for test in (True, False):
        job = Job(Contestant(SMALL), 0, settings, str(tmp_path / str(test)), test=test)
        outcome = perform(job)
        assert outcome.error == ""
        assert (set(outcome.validation) >= NAMES, set(outcome.test) >= NAMES) == (test, test)
    assert outcome.validation


def test_completing_beats_for_whoever_watches(trained, monkeypatch):
    beats = []
    monkeypatch.setattr("regard_workbench.training.signals._listeners", [lambda: beats.append(1)])
    loaded = load(str(trained.folder), device="cpu")
    completions(loaded.task, loaded.model, "test", batch_size=8, most=3, device="cpu")
    assert beats and not loaded.model.head._forward_pre_hooks


@pytest.mark.parametrize(("name", "model"), [("align", "seq2seq(dim=8)"), ("speech", "recognizer(dim=8, num_heads=2)")])
def test_perplexity_is_that_of_the_written_tokens(name, model):
    """Of a recogniser the loss holds that of CTC, too, which is none of tokens."""
    task = tasks.build(name)
    torch.manual_seed(5)
    built = models.build(model, task.problem).eval()
    examples = task.examples("validation")
    batch = task.collate([examples[n] for n in range(5)], torch.Generator())
    perplexity = next(metric for metric in task.metrics() if metric.name == "perplexity")
    with torch.no_grad():
        found = perplexity.value(perplexity.of(Answered(built, batch)))
        outputs = built(batch)
        logits = getattr(outputs, "written", outputs).double().log_softmax(-1)
    right = logits.gather(-1, batch.targets[..., None])[..., 0]
    keep = torch.ones_like(right, dtype=torch.bool) if batch.target_keep is None else batch.target_keep
    assert found == pytest.approx(float(torch.exp(-right[keep].mean())), rel=1e-5)
