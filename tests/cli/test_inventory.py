"""What `regard list` reads instead of importing the rooms: it says what the things say."""

import importlib
import subprocess
import sys

import pytest

from regard import nn
from regard.errors import BadValue
from regard_workbench import models, plugins, tasks
from regard_workbench.cli.common import catalogue, inventory

IN_A_FRESH_PROCESS = "from regard_workbench.cli.common import inventory; print(inventory.written(), end='')"


@pytest.mark.slow
def test_the_inventory_is_what_the_things_say():
    said = subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], capture_output=True, text=True, check=True)
    recorded = inventory.FILE.read_text(encoding="utf-8")
    assert said.stdout == recorded, "write it again: python -m regard_workbench.cli.common.inventory"


@pytest.mark.parametrize("kind", inventory.KINDS)
def test_every_name_of_a_kind_is_found(kind):
    rows = inventory.rows_of(kind)
    assert len(rows) >= 3
    for row in rows:
        assert inventory.address_of(f"{kind}.{row['name']}") == (kind, row["name"], {})


def test_the_rooms_of_the_inventory_are_those_of_the_registries():
    for kind, names in (("mechanisms", nn.names()), ("models", models.names()), ("tasks", tasks.names())):
        _, home, registry = inventory.REGISTRIES[kind]
        assert sorted(getattr(importlib.import_module(home), registry).names()) == names
        assert set(inventory.names_of(kind).values()) == set(names)


@pytest.fixture
def toy():
    """A task that a file of the user registers."""

    @tasks.task("toy-of-the-inventory")
    class ToyOfTheInventory(type(tasks.build("copy"))):
        """Copies like copy."""

    yield ToyOfTheInventory
    del tasks.TASKS._things[ToyOfTheInventory.name]


def test_what_a_file_of_the_user_registers_is_listed_and_found(toy):
    (row,) = (row for row in inventory.rows_of("tasks") if row["name"] == toy.name)
    assert row["summary"] == "Copies like copy." and row["metric"] == tasks.TASKS["copy"].metric.name
    assert inventory.address_of("toy_of_the_inventory").name == toy.name
    assert catalogue.find(toy.name).thing is toy


def test_a_name_that_a_file_of_the_user_takes_over_is_listed_as_theirs(monkeypatch, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from regard import tasks\n"
        "@tasks.task('recall')\n"
        "class MyRecall(tasks.TASKS['recall']):\n    'Recalls in my way.'\n"
    )
    monkeypatch.setattr(plugins, "_LOADED", {})
    theirs = tasks.TASKS["recall"]
    try:
        plugins.load([file])
        assert {row["name"]: row["summary"] for row in inventory.rows_of("tasks")}["recall"] == "Recalls in my way."
    finally:
        theirs.name = "recall"
        tasks.TASKS.add("recall", theirs)


def test_a_new_file_of_a_room_is_asked_before_the_registry_is_loaded(monkeypatch):
    package, home, _ = inventory.REGISTRIES["tasks"]
    monkeypatch.delitem(sys.modules, home)
    assert inventory._is_complete("tasks")
    files = inventory.files_of(package)
    assert "dates" in files and "parts" not in files
    monkeypatch.setattr(inventory, "files_of", lambda package: [*files, "zzz"])
    assert not inventory._is_complete("tasks")


def test_a_name_is_found_beside_a_task_that_cannot_be_built(toy, monkeypatch):
    monkeypatch.setattr(toy, "answers", lambda self: [][0])
    assert inventory.address_of("dates").kind == "tasks" and inventory.address_of(toy.name).name == toy.name
    with pytest.raises(BadValue, match="Did you mean 'dates'"):
        inventory.address_of("dats")


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("local(window=9)", ("mechanisms", "local", {"window": 9})),
        ("soft", ("mechanisms", "global", {})),
        ("mechanisms.local_m", ("mechanisms", "local-m", {})),
        ("models.ntm", ("models", "ntm", {})),
        ("transformer_xl(layers=2)", ("models", "transformer-xl", {"layers": 2})),
        ("masks.global-tokens", ("masks", "global_tokens", {})),
    ],
)
def test_a_name_is_found_with_its_kind_and_options(asked, place):
    assert inventory.address_of(asked) == place


@pytest.mark.parametrize("asked", ["", ".", "tasks.", "masks.causal()", "nosuch.dates", "dates(", "models.dates"])
def test_what_is_no_name_is_refused(asked):
    with pytest.raises(BadValue, match="there is no"):
        inventory.address_of(asked)
