"""What each task's recipe states to reach without files, within three minutes on two cores, every seed reaches."""

import pytest

from regard_workbench import tasks
from regard_workbench.cli.common import catalogue
from regard_workbench.cli.common.inventory import rows_of
from regard_workbench.comparison.evaluate import evaluate_run
from regard_workbench.tasks.parts.task import TASKS
from regard_workbench.training import train

# A single seed says too little: 0.92, 0.97, 0.94, 0.98 and 0.97 were once stated as "at least 0.95".
SEEDS = range(5)
STATED = [name for name in tasks.names() if TASKS[name].recipe.reaches]


def test_every_field_of_language_sound_time_items_graphs_pictures_and_actions_states_a_score():
    fields = {
        "tag",
        "answer",
        "dialogue",
        "respond",
        "reply",
        "speech",
        "match",
        "series",
        "recommend",
        "graph",
        "align",
        "images",
        "video",
        "caption",
        "ask",
        "detect",
        "segment",
        "glimpse",
        "generate",
        "agent",
    }
    assert fields <= set(STATED)


@pytest.mark.parametrize("name", STATED)
def test_a_stated_score_is_of_a_metric_of_the_task_and_is_listed_as_people_read_it(name):
    task = tasks.build(name)
    known = {metric.name: metric for metric in task.metrics()}
    (row,) = [row for row in rows_of("tasks") if row["name"] == name]
    assert row["reaches"] == catalogue.reached(name)
    for metric, value in task.recipe.reaches.items():
        bound, _, text = row["reaches"][metric].partition(" ")
        assert bound == ("≥" if known[metric].higher_is_better else "≤")
        assert text == known[metric].text(value)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", STATED)
def test_the_recipe_reaches_the_stated_scores_and_more_than_any_yardstick(name, seed, tmp_path):
    train({"task": name, "out": str(tmp_path / "run"), "device": "cpu", "seed": seed}, quiet=True)
    found = {row.metric: row.value for row in evaluate_run(tmp_path / "run", "test", device="cpu").metrics}
    known = {metric.name: metric for metric in tasks.build(name).metrics()}
    for metric, bound in TASKS[name].recipe.reaches.items():
        sign = 1 if known[metric].higher_is_better else -1
        assert sign * found[metric] >= sign * bound, found
        yardsticks = [other for other in found if other not in known and other.endswith(f"_{metric}")]
        assert all(sign * found[metric] > sign * found[other] for other in yardsticks), found
