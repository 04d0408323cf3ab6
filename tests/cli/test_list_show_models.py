"""Models and tasks in `regard list` and `regard show`."""

import functools
import inspect
import json
import re

import pytest
from rich.cells import cell_len

from regard import nn
from regard_workbench import models, tasks
from regard_workbench.cli.common import catalogue
from regard_workbench.cli.common.console import console
from regard_workbench.cli.main import main
from regard_workbench.cli.show import page
from regard_workbench.models.parts.model import MODELS
from regard_workbench.tasks.parts.task import TASKS
from tests.model_pages import facts_of

# Other tests register toys of their own.
MODEL_NAMES = [name for name in models.names() if MODELS[name].__module__.startswith("regard_workbench.")]
TASK_NAMES = [name for name in tasks.names() if TASKS[name].__module__.startswith("regard_workbench.")]
PLACES = [f"models.{name}" for name in MODEL_NAMES] + [f"tasks.{name}" for name in TASK_NAMES]


@functools.cache
def problems_of(task):
    return tasks.build(task).problems()


def printed(capsys, *arguments):
    code = main(list(arguments))
    return code, capsys.readouterr().out


@pytest.mark.parametrize("place", PLACES)
def test_every_model_and_task_has_a_complete_page(place):
    content = facts_of(place)
    assert content["summary"].endswith(".") and content["example"].startswith("regard train ")
    silent = [option["name"] for option in content["options"] if not option["meaning"]]
    assert not silent, f"{place}: no word on {silent}"
    assert content.get("gives") or content.get("answers")
    json.dumps(content)
    for width in (60, 100):
        out = console(width)
        with out.capture() as captured:
            out.print(page.page(content, width))
        text = captured.get()
        assert "\x1b" not in text and all(cell_len(line) <= width for line in text.splitlines())
        assert " ".join(content["example"].split()) in " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_page_of_a_model_names_its_answers_its_options_and_where_an_attention_goes(name):
    content = facts_of(f"models.{name}")
    assert tuple(content["gives"]) == MODELS[name].gives
    assert content["attention"] == MODELS[name].takes_attention
    problems = {task: problems_of(task) for task in content["tasks"]}
    assert all(models.problem_for(name, found) in found for found in problems.values())
    defaults = {option["name"]: option["default"] for option in content["options"]}
    for option, parameter in inspect.signature(MODELS[name].__init__).parameters.items():
        if option not in ("self", "problem", "options"):
            assert defaults[option] == parameter.default


def test_the_usual_attention_is_the_one_the_model_is_built_with():
    assert facts_of("decoder")["attention_default"] == "causal"
    assert facts_of("static-transformer")["attention_default"] == "static-memory"
    assert facts_of("transformer-xl")["attention_default"] == "relative(positions=transformer-xl)"
    assert facts_of("lstm-attention")["attention_default"] == "additive"


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_page_of_a_task_names_its_recipe_and_the_models_that_can_do_it(name):
    content = facts_of(f"tasks.{name}")
    assert content["recipe"]["model"] in content["models"]
    assert content["recipe"]["steps"] == TASKS[name].recipe.steps and content["metric"] == TASKS[name].metric.name
    problems = tasks.build(name).problems()
    # Answers of several forms to one question have the same words.
    asked = list(dict.fromkeys(content["answers"].values()))
    assert asked == list(dict.fromkeys(one.answer.words for one in problems))
    able = [model for model in models.names() if any(models.fits(MODELS[model], one) for one in problems)]
    assert content["models"] == able


@pytest.mark.parametrize(("kind", "names"), [("models", MODEL_NAMES), ("tasks", TASK_NAMES)])
def test_models_and_tasks_can_be_listed(kind, names, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, text = printed(capsys, "list", kind)
    assert code == 0 and "\x1b" not in text
    assert all(len(line) <= 80 and line == line.rstrip() for line in text.splitlines())
    for name in names:
        assert re.search(rf"^{name}  ", text, flags=re.M)
    assert f"regard show {kind}.NAME" in text.splitlines()[-1]
    _, data = printed(capsys, "list", kind, "--json")
    rows = json.loads(data)
    assert [row["name"] for row in rows if row["name"] in names] == names
    assert all(row["summary"] for row in rows)


def test_a_mechanism_wins_a_name_clash_and_a_kind_in_front_decides():
    entry, _ = catalogue.find("ntm")
    assert entry is nn.entry("ntm")
    assert facts_of("models.ntm")["kind"] == "models"
    assert facts_of("decoder")["kind"] == "models" and facts_of("dates")["kind"] == "tasks"
    assert facts_of("transformer_xl")["name"] == "transformer-xl"


def test_options_in_parentheses_reach_the_example_and_wrong_ones_are_refused(capsys):
    content = facts_of("decoder(layers=8, dim=64)")
    assert content["example"] == 'regard train language --model "decoder(layers=8, dim=64)"'
    assert main(["show", "decoder(layrs=8)"]) == 2
    assert "Did you mean 'layers'?" in capsys.readouterr().err
    assert main(["show", "decodr"]) == 2
    assert "Did you mean 'decoder'?" in capsys.readouterr().err
    assert main(["show", "models.nothing"]) == 2
    assert main(["show", "models."]) == 2


def test_show_as_json_holds_what_the_page_says(capsys):
    _, text = printed(capsys, "show", "dates", "--json")
    content = json.loads(text)
    _, shown = printed(capsys, "show", "dates", "--width", "100")
    flowing = " ".join(shown.split())
    assert content["summary"] in flowing and "model seq2seq" in flowing
    assert all(option["meaning"] in flowing for option in content["options"])


def test_the_page_of_a_task_tells_how_to_train_predict_view_and_compare():
    facts = facts_of("tasks.ask")
    assert facts["commands"] == [
        "regard train ask --out runs/ask",
        "regard evaluate runs/ask",
        "regard predict runs/ask --example 10 --figure ask.svg",
        "regard view runs/ask",
        "regard compare ask",
    ]
    assert facts["own_input"] == 'regard predict runs/ask --image FILE --text "…"'
    assert facts_of("tasks.agent")["own_input"] == facts_of("tasks.tag")["own_input"] == ""
