"""Settings: read from files and flags, completed by the recipe, all mistakes reported together."""

import pytest
import yaml

from regard.errors import BadValue
from regard_workbench.training import Config, Optim
from regard_workbench.training import config as settings
from regard_workbench.training.config.readers import texts
from regard_workbench.training.config.recipe import complete
from tests.training import toy


def test_missing_settings_come_from_the_tasks_recipe():
    config = complete(Config(task="toy"))
    recipe = toy.Toy.recipe
    assert (config.model, config.steps, config.batch_size) == (recipe.model, recipe.steps, recipe.batch_size)
    assert (config.optim.lr, config.optim.warmup) == (recipe.lr, recipe.warmup)


def test_given_settings_override_the_recipe():
    config = complete({"task": "toy", "steps": "7", "optim.lr": "3e-4", "optim": {"warmup": 0}, "batch-size": 2})
    assert (config.steps, config.optim.lr, config.optim.warmup, config.batch_size) == (7, 3e-4, 0, 2)


def test_all_mistakes_are_reported_together():
    wrong = {
        "task": "tyo",
        "steps": "many",
        "optim.lr": -1,
        "optim.shedule": "cosine",
        "precision": "bf16-mixd",
        "optim.betas": "0.9",
        "name": "../x",
        "seed": 1.5,
    }
    with pytest.raises(BadValue) as caught:
        complete(wrong)
    text = str(caught.value)
    assert "8 mistakes" in text
    for part in (
        "Did you mean 'toy'?",
        "steps: expected a whole number of at least 0, got 'many'",
        "optim.lr: expected a finite number of at least 0, got -1",
        "Did you mean 'optim.schedule'?",
        "Did you mean 'bf16-mixed'?",
        "optim.betas: expected two numbers",
        "name: '../x'",
        "seed: expected a whole number",
    ):
        assert part in text, text


@pytest.mark.parametrize("field", ["model", "attention"])
def test_unknown_names_are_refused_before_anything_is_built(field):
    with pytest.raises(BadValue, match="there is no 'nonsense'"):
        complete({"task": "toy", field: "nonsense(a=1)"})


def test_a_printed_config_is_read_back_unchanged(tmp_path):
    config = complete(Config(task="toy", data=("a", "b"), optim=Optim(betas=(0.5, 0.6), lr=3e-4)))
    (tmp_path / "c.yaml").write_text(settings.to_yaml(config))
    assert complete(settings.from_yaml(tmp_path / "c.yaml")) == config


def test_numbers_that_yaml_reads_as_text_are_numbers(tmp_path):
    (tmp_path / "c.yaml").write_text("task: toy\nsteps: 1e3\noptim:\n  lr: 3e-4\n")
    config = complete(settings.from_yaml(tmp_path / "c.yaml"))
    assert (config.optim.lr, config.steps) == (3e-4, 1000)


@pytest.mark.parametrize(
    "content", ["!!python/object/apply:os.system ['true']", "[1, 2", "just words", "- a\n- b", "[" * 5000]
)
def test_a_file_without_settings_is_refused(tmp_path, content):
    (tmp_path / "c.yaml").write_text(content)
    with pytest.raises(BadValue, match="--config"):
        settings.from_yaml(tmp_path / "c.yaml")


def test_a_missing_file_and_one_that_is_not_text_are_refused(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "c.yaml", tmp_path / "none.yaml", tmp_path):
        with pytest.raises(BadValue, match="--config: cannot read"):
            settings.from_yaml(path)


def test_lists_are_split_at_commas_outside_parentheses():
    assert texts("a, local(window=3, num_heads=2),b") == ("a", "local(window=3, num_heads=2)", "b")
    assert texts("Alice's book.txt, 1).txt,c") == ("Alice's book.txt", "1).txt", "c")


def test_paths_become_absolute_and_may_hold_a_comma(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one.txt", "two.txt", "a,b.txt"):
        (tmp_path / name).touch()
    read = lambda given: settings.read({"data": given})[0]["data"]  # noqa: E731
    assert read("one.txt,two.txt") == (str(tmp_path / "one.txt"), str(tmp_path / "two.txt"))
    assert read("a,b.txt") == (str(tmp_path / "a,b.txt"),)
    assert read("hf:sst2") == ("hf:sst2",)


@pytest.mark.parametrize("given", [",", " , ,"])
def test_paths_of_commas_alone_are_refused(given):
    """They were no files at all, so the task made its own examples."""
    with pytest.raises(BadValue, match="data: expected a path, or several joined by commas"):
        complete({"task": "language", "data": given})


def test_every_setting_has_a_line_of_help_and_survives_yaml():
    for name, one in settings.settings().items():
        assert one.metadata["help"], name
    assert set(settings.flat(yaml.safe_load(settings.to_yaml(Config(task="toy"))))) == set(settings.settings())
