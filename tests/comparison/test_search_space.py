"""What tuning may choose from, as a user writes it."""

import pytest

from regard.errors import BadValue
from regard.registry import parse
from regard_workbench.comparison.search_space import Categorical, Range, default_space, own, read, settings, spelled
from regard_workbench.models.parts.model import MODELS, options_of
from regard_workbench.tasks.parts.task import TASKS
from regard_workbench.training.config.recipe import complete

DIGITS = complete({"task": "digits"})


def test_ranges_and_choices_are_read_as_their_settings_read_them():
    text = "optim.lr=1e-4..1e-2:log,optim.weight_decay=0|0.01|0.1, optim.warmup=0..200 ,batch-size=8|16"
    text += ",optim.smoothing=0..0.3"
    assert read(text, DIGITS) == (
        Range("optim.lr", 1e-4, 1e-2, log=True),
        Categorical("optim.weight_decay", {"0": 0.0, "0.01": 0.01, "0.1": 0.1}),
        Range("optim.warmup", 0, 200, whole=True),
        Categorical("batch_size", {"8": 8, "16": 16}),
        Range("optim.smoothing", 0.0, 0.3),
    )


def test_a_setting_that_is_no_whole_number_is_none_however_its_ends_are_written():
    (decay,) = read("optim.weight_decay=0..1", DIGITS)
    assert not decay.whole
    (dropout,) = read("model.dropout=0..1", DIGITS)
    assert not dropout.whole
    (layers,) = read("model.layers=1..3", DIGITS)
    assert layers.whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("optim.lrr=1e-4..1e-2", ["optim.lrr: there is no such setting", "Did you mean 'optim.lr'?"]),
        ("model.dropuot=0..1", ["option of encoder", "Did you mean 'dropout'?"]),
        ("model.attention=local|global", ["there is no 'attention'"]),
        ("steps=100..200", ["steps is a rule of the comparison", "model.OPTION", "batch_size"]),
        ("optim.lr=0.1", ["NAME=LOW..HIGH", "got 'optim.lr=0.1'"]),
        ("optim.lr", ["NAME=LOW..HIGH", "got 'optim.lr'"]),
        ("", ["expected NAME=LOW..HIGH"]),
        ("optim.lr=1..0.1", ["the lower end first"]),
        ("optim.lr=0..0.1:log", ["begins above 0"]),
        ("optim.lr=0..0.1:lin", ["a finite number", "'0.1:lin'"]),
        ("optim.lr=-1..0.1", ["of at least 0"]),
        ("optim.warmup=0..1.5", ["a whole number"]),
        ("optim.optimizer=adamw|rmspop", ["rmsprop"]),
        ("optim.optimizer=adamw..rmsprop", ["a number on both sides of .."]),
        ("optim.lr=1e-4..1e-2,optim.lr=1|2", ["optim.lr appears twice"]),
        ("optim.lr=x..y,optim.clap=1|2,steps=1|2", ["3 mistakes", "optim.clip", "a finite number", "a rule"]),
    ],
)
def test_mistakes_are_reported_together_with_the_expected_form(text, words):
    with pytest.raises(BadValue) as mistake:
        read(text, DIGITS)
    for word in [*words, "space:"]:
        assert word in str(mistake.value)


def test_tuned_options_of_the_model_are_merged_with_those_of_the_recipe():
    config = complete({"task": "dates", "model": "transformer"})
    assert config.model == "transformer(layers=2, dim=96, dropout=0.0)"
    found = settings({"model.dropout": 0.25, "optim.lr": 0.5}, config)
    assert found == {"model": "transformer(layers=2, dim=96, dropout=0.25)", "optim.lr": 0.5}
    assert settings({"optim.lr": 0.5}, config) == {"optim.lr": 0.5}


@pytest.mark.parametrize(
    "text",
    [
        "decoder",
        "decoder(layers=4, dim=128)",
        "transformer(attention=local(window=65, positions=rotary), dropout=0.1, norm=None, tied=True)",
        "x(memory=static-memory, sizes=(1, 2), text='a, b', number='3', empty='', none='None')",
        "x(small=1e-07, minus=-2.5)",
    ],
)
def test_spelled_is_the_inverse_of_parse(text):
    assert parse(spelled(*parse(text))) == parse(text)


@pytest.mark.parametrize("task", TASKS.names())
def test_the_usual_space_holds_the_settings_of_every_recipe(task):
    config = complete({"task": task})
    found = default_space(config)
    recipe = TASKS[task].recipe
    assert {one.name for one in found} >= {"optim.lr", "optim.weight_decay"}
    assert own(found, config)["optim.lr"] == recipe.lr
    (rate,) = (one for one in found if one.name == "optim.lr")
    assert rate.low == pytest.approx(recipe.lr / 10) and rate.high == pytest.approx(recipe.lr * 10)


def test_a_budget_in_seconds_has_a_usual_space_too():
    found = default_space(complete({"task": "digits", "budget": "9 seconds"}))
    assert [one.name for one in found] == ["optim.lr", "optim.weight_decay", "optim.warmup"]


def test_own_settings_outside_of_the_space_have_no_place_in_it():
    assert own(read("optim.lr=0.5..0.9", DIGITS), DIGITS) is None
    assert own(read("optim.weight_decay=0|0.1", DIGITS), DIGITS) is None
    default = options_of(MODELS["encoder"])["dropout"].default
    assert own(read("model.dropout=0..0.9", DIGITS), DIGITS) == {"model.dropout": default}
    inside = complete({"task": "digits", "model": "encoder(dropout=0.3)"})
    assert own(read("model.dropout=0..0.9", inside), inside) == {"model.dropout": 0.3}


def test_a_drawn_number_has_three_digits_and_stays_inside():
    assert Range("optim.lr", 1e-4, 1e-2).setting(0.00123456) == 0.00123
    assert Range("optim.lr", 0.0012349, 1e-2).setting(0.0012349) == 0.0012349
    assert Range("optim.warmup", 0, 99999, whole=True).setting(12345) == 12345
    assert Categorical("optim.weight_decay", {"0.01": 0.01}).setting("0.01") == 0.01
