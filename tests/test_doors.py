"""What an import loads, names that are known without importing, and the workbench's rooms in `regard`."""

import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import regard
from regard.nn.parts.mechanism import MECHANISMS
from regard_workbench.models import parts
from regard_workbench.models.parts import embedding
from regard_workbench.models.parts.model import MODELS
from regard_workbench.tasks.parts.task import TASKS

COMMAND = """
import contextlib, io, json, sys
from regard_workbench.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print(json.dumps([name for name in sys.modules if name.split(".")[0] in ("regard", "regard_workbench", "torch")]))
"""
BEFORE_ANY_IMPORT = """
import json
import regard_workbench
from regard.nn.parts.mechanism import MECHANISMS, entry, names
known = [names(), list(MECHANISMS._things)]
print(json.dumps([*known, entry("soft").name, entry("gla").name]))
"""
OPERATORS = """
import sys, regard, torch
names = [schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("regard::")]
print(names, list(sys.modules["regard.nn.parts.scan"].PIECES))
"""


def printed(code, *words, cwd=None):
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=cwd, check=True)
    return done.stdout.splitlines()[-1]


def loaded(*words, cwd):
    """The modules that a command loads."""
    return json.loads(printed(COMMAND, *words, cwd=cwd))


@pytest.mark.slow
def test_help_needs_neither_torch_nor_the_rooms(tmp_path):
    modules = loaded("--help", cwd=tmp_path)
    assert "torch" not in modules
    assert len(modules) < 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["list", "list tasks", "list models --json", "list masks", "show dats", "list nosuch"]
)
def test_listing_and_looking_up_a_name_need_neither_torch_nor_the_rooms(words, tmp_path):
    modules = loaded(*words.split(), cwd=tmp_path)
    assert "torch" not in modules
    assert len([name for name in modules if name.startswith("regard")]) < 25


@pytest.mark.slow
def test_training_loads_one_task_one_model_and_fewer_than_170_modules(tmp_path):
    modules = loaded("train", "dates", "--steps", "1", "--out", "run", "--device", "cpu", cwd=tmp_path)
    assert (tmp_path / "run" / "config.yaml").exists()
    files = {*TASKS._modules.values(), *MODELS._modules.values()}
    assert files & set(modules) == {"regard_workbench.tasks.dates", "regard_workbench.models.seq2seq"}
    assert len([name for name in modules if name.startswith("regard")]) < 170


@pytest.mark.parametrize("registry", [TASKS, MODELS, MECHANISMS], ids=lambda registry: registry.kind)
def test_each_file_of_a_registry_registers_its_own_name(registry):
    assert len(registry._modules) > 20
    for name, module in registry._modules.items():
        importlib.import_module(module)
        assert name in registry._things, f"{module} registers no {registry.kind} called {name!r}"


@pytest.mark.slow
def test_names_and_aliases_are_known_before_any_file_is_imported():
    listed, imported, soft, gla = json.loads(printed(BEFORE_ANY_IMPORT))
    assert listed == regard.nn.names() and imported == []
    assert (soft, gla) == ("global", "global-query")
    aliases = {alias: entry.name for entry in map(regard.nn.entry, regard.nn.names()) for alias in entry.aliases}
    assert aliases == {"soft": "global", "gla": "global-query"}, "name a new alias in parts/mechanism.py, too"


def test_each_kind_of_stream_names_the_module_of_its_embedding():
    for name in MODELS:
        assert MODELS[name].name == name
    for file in pkgutil.iter_modules(parts.__path__, f"{parts.__name__}."):
        importlib.import_module(file.name)
    kinds = {kind: make for kind, make in embedding._EMBEDDERS.items() if kind.__module__.startswith("regard_")}
    assert len(kinds) >= 9
    for kind, make in kinds.items():
        assert make.__module__ in (embedding.__name__, getattr(kind, "embedder", None)), kind


@pytest.mark.parametrize("room", ["models", "tasks", "training", "viewer"])
def test_the_rooms_of_the_workbench_are_open_in_regard(room):
    door = importlib.import_module(f"regard.{room}")
    behind = importlib.import_module(f"regard_workbench.{room}")
    assert door.__all__ == behind.__all__
    for name in behind.__all__:
        assert getattr(door, name) is getattr(behind, name)
    assert room == "viewer" or getattr(regard, room) is door


@pytest.mark.slow
def test_an_import_of_the_library_registers_what_exported_programs_call():
    registered = printed(OPERATORS)
    for name in ("tiled", "tiled_backward", "scan", "scan_backward", "ntm", "ntm_backward"):
        assert f"'regard::{name}'" in registered
    for piece in ("gla-scores", "gla-prefix", "linear-causal-elu"):
        assert f"'{piece}'" in registered, "a scan of an exported program names it"
