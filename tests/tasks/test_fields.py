"""A task of any field is one short file: each of these trains, is measured and is judged by metrics of its own."""

import importlib
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.tasks import TASKS
from regard_workbench.tasks.measures.metrics import Answered, merged, observe
from regard_workbench.training import train

FOLDER = Path(__file__).parent / "fields"
# What each task reaches within its recipe; chance lies far below (or, for the error rate, far above).
REACHES = {"tagger": 0.7, "two_streams": 0.75, "graph": 0.9, "ctc": 0.1, "boxes": 0.3, "agent": 0.95, "ranking": 0.6}
ONLY = {"random", "dataclasses", "torch", "scipy", "regard", "regard_workbench"}


@pytest.fixture(autouse=True, scope="module")
def registered():
    before = set(TASKS.names())
    for name in REACHES:
        importlib.reload(importlib.import_module(f"tests.tasks.fields.{name}"))
    yield
    for name in set(TASKS.names()) - before:
        del TASKS._things[name]


def name_of(field):
    return f"test-{field.replace('_', '-')}"


@pytest.mark.parametrize("field", REACHES)
def test_a_task_is_one_file_of_at_most_120_lines_that_needs_nothing_else(field):
    lines = (FOLDER / f"{field}.py").read_text().splitlines()
    assert len(lines) <= 120
    imported = {line.split()[1].split(".")[0] for line in lines if line.startswith(("import ", "from "))}
    assert imported <= ONLY


@pytest.mark.slow
@pytest.mark.parametrize("field", REACHES)
def test_a_task_of_any_field_trains_to_a_stated_score(field, tmp_path):
    name = name_of(field)
    metric = TASKS[name].metric
    result = train({"task": name, "out": str(tmp_path / "run"), "device": "cpu", "eval_every": 50}, quiet=True)
    best = result.best["value"]
    assert (best >= REACHES[field]) if metric.higher_is_better else (best <= REACHES[field])


@pytest.mark.parametrize("field", REACHES)
def test_states_merge_over_any_split_of_the_batches(field):
    """The same value from one batch, from several, and from states that went through JSON and another order."""
    import json

    task = tasks.build(name_of(field))
    torch.manual_seed(1)
    model = models.build(task.recipe.model, models.problem_for(task.recipe.model, task.problems())).double().eval()
    examples, metrics = task.examples("test"), task.metrics()
    random_state = torch.Generator().manual_seed(0)
    batch = task.batch(examples, range(12), random_state, model)
    if batch.size != 12:  # a graph is one batch, whatever is asked
        return
    with torch.no_grad():
        whole = observe(metrics, Answered(model, batch.cast(torch.float64)))
        parts = []
        for rows in (range(0, 5), range(5, 6), range(6, 12)):
            part = batch.map(lambda tensor, rows=rows: tensor[list(rows)])
            parts.append(json.loads(json.dumps(observe(metrics, Answered(model, part.cast(torch.float64))))))
    together = merged(metrics, parts[::-1])
    for metric in metrics:
        if metric.name != "loss":  # a sum of float32
            assert metric.value(together[metric.name]) == pytest.approx(metric.value(whole[metric.name]))


def test_average_precision_is_that_of_scikit_learn():
    from sklearn.metrics import average_precision_score

    metric, draw = TASKS["test-boxes"].metric, random.Random(2)
    hits = [[draw.random(), int(draw.random() < 0.3)] for _ in range(200)]
    expected = average_precision_score([hit for _, hit in hits], [score for score, _ in hits])
    assert metric.value({"hits": hits, "boxes": sum(hit for _, hit in hits)}) == pytest.approx(expected)


def test_a_metric_that_is_no_sum_is_resampled_by_merging():
    metric = TASKS["test-boxes"].metric
    states = [{"hits": [[0.9, 1], [0.4, 0]], "boxes": 1}, {"hits": [[0.8, 0], [0.7, 1]], "boxes": 2}]
    found = metric.resampled(states, np.array([[2, 0], [1, 1], [0, 2]]))
    assert found == pytest.approx([1.0, (1 + 2 / 3) / 3, (1 / 3 + 2 / 4) / 4])


def test_the_conditional_random_field_agrees_with_brute_force():
    import itertools

    from tests.tasks.fields.tagger import CRF

    torch.manual_seed(0)
    head = CRF(3, 5).double()
    torch.nn.init.normal_(head.transition)
    rows, gold = torch.randn(2, 4, 5, dtype=torch.float64), torch.tensor([[0, 1, 2, 0], [1, 2, 0, 0]])
    keep = torch.tensor([[True] * 4, [True] * 3 + [False]])
    batch = tasks.Batch.of(torch.zeros(2, 4), keep, gold, keep)
    scores = head(rows, batch)
    expected, best = 0.0, []
    for row, length in enumerate((4, 3)):
        path = {
            tags: sum(scores[row, t, tag].item() for t, tag in enumerate(tags))
            + sum(head.transition[a, b].item() for a, b in itertools.pairwise(tags))
            for tags in itertools.product(range(3), repeat=length)
        }
        normalizer = torch.tensor(list(path.values())).double().logsumexp(0).item()
        expected += normalizer - path[tuple(gold[row, :length].tolist())]
        best.append(list(max(path, key=path.get)))
    assert head.loss(scores, batch)[0].item() == pytest.approx(expected, rel=1e-5)
    assert head.predict(scores, batch) == best


@pytest.mark.parametrize("graph", [0, 1])
def test_edges_beside_another_stream_are_refused_wherever_they_stand(graph):
    """Edges of a second stream must not be left out without a word."""
    from regard.errors import Unsupported
    from regard_workbench.models.parts.embedding import stream_mask

    streams = [tasks.Stream(torch.zeros(1, 3, 2)), tasks.Stream(torch.zeros(1, 5, 2))]
    streams[graph] = tasks.Stream(streams[graph].data, edges=torch.tensor([[0], [1]]))
    with pytest.raises(Unsupported, match="must be the only one, got 2 streams"):
        stream_mask(streams)
