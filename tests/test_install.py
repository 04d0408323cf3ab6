"""What `pip install regard` brings is enough for `attend`, `nn` and `observe`, and every import is declared."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BROUGHT_ALONG = {"huggingface-hub": "transformers", "traitlets": "anywidget"}  # imported beside what brings them


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def required(lines):
    """The names of distributions in a list of requirements."""
    return {canonical(re.match(r"[\w.-]+", line)[0]) for line in lines}


installed = cache(metadata.packages_distributions)  # it reads the files of every distribution


def distributions(module):
    """The distributions that hold a top-level module, as installed here."""
    return {canonical(name) for name in installed().get(module, [])}


@cache
def imported_modules():
    """Top-level modules that a file of the package imports, at the top or inside a function, less the standard ones."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"regard", "regard_fast", "regard_workbench"}


def test_every_import_is_declared():
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    declared = required([*PROJECT["dependencies"], *extras])
    missing = {}
    for module in imported_modules():
        names = distributions(module)  # empty where an optional one is not installed
        if names and not {BROUGHT_ALONG.get(name, name) for name in names} & declared:
            missing[module] = names
    assert not missing


@pytest.mark.parametrize("extra", ["", "workbench"])
def test_every_dependency_is_imported(extra):
    lines = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    imported = set().union(*(distributions(module) for module in imported_modules()))
    assert not required(lines) - imported


LIGHT = """
import sys
from importlib.machinery import PathFinder

refused = set(sys.argv[1].split(","))


class Light(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else super().find_spec(name, path, target)


sys.meta_path[:] = [Light if one is PathFinder else one for one in sys.meta_path]

import torch

import regard
from regard import biases, masks, scores

x = torch.randn(2, 3, 11, 5)
regard.attend(x, x, x, mask=masks.causal() & masks.window(3, 0), bias=biases.alibi(3))
regard.attend(x, x, x, score=scores.additive(torch.randn(5)), normalize="sparsemax")
print(regard.explain(x, x, x))
assert regard.weights(x, x, rows=[0]).shape == (2, 3, 1, 11)
regard.summarize(x, x, top=3)
for name in regard.nn.names():
    regard.nn.build(name, dim=6, **regard.nn.entry(name).needs)
layer = regard.nn.build("local", dim=6, num_heads=2, window=3)
rows = torch.randn(2, 7, 6)
layer(rows).sum().backward()
model = torch.nn.TransformerEncoderLayer(6, 2, batch_first=True).eval()
for watched in (layer, model):
    with regard.observe(watched) as seen:
        watched(rows)
    site = seen[seen.names()[0]]
    assert site.weights().shape == (2, 2, 7, 7)
    site.summary(top=2)
    seen.heads()
    seen.rollout(rows=[0])
    seen.ablate(loss=lambda out: out.norm())
for verb in (regard.train, regard.evaluate, regard.compare, regard.view):
    try:
        verb("digits")
    except ImportError as missing:
        assert isinstance(missing, regard.RegardError) and 'pip install "regard[workbench]"' in str(missing)
    else:
        raise AssertionError(f"{verb.__name__} ran without its packages")
"""


def closure(names):
    """Distributions and everything they require without an extra, as installed here."""
    found, open_ = set(), list(names)
    while open_:
        name = canonical(open_.pop())
        if name not in found:
            try:
                lines = metadata.requires(name) or []
            except metadata.PackageNotFoundError:
                continue
            found.add(name)
            open_ += [re.match(r"[\w.-]+", line)[0] for line in lines if "extra ==" not in line]
    return found


@pytest.mark.slow
def test_the_light_install_attends_builds_layers_and_observes():
    held = closure(required(PROJECT["dependencies"])) | {"regard"}
    refused = {
        module
        for module, names in metadata.packages_distributions().items()
        if not held & {canonical(name) for name in names}
    }
    assert {"matplotlib", "scipy", "accelerate", "rich", "jsonargparse"} <= refused
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, ",".join(sorted(refused))],
        env={"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_importing_what_draws_only_at_the_end_writes_nothing_into_the_home_folder(tmp_path):
    """matplotlib makes ~/.config/matplotlib when it is imported, and reads the user's own settings there."""
    modules = [
        "regard_workbench.cli.main",
        "regard_workbench.cli.train",
        "regard_workbench.cli.view",
        "regard_workbench.training",
        "regard_workbench.comparison.compare",
        "regard_workbench.viewer.server",
        "regard_workbench.viewer.opening.pretrained",
        "regard_workbench.viewer.export",
        "regard.observation.observe",
        "regard_workbench.attacks",
    ]
    code = "\n".join([*(f"import {name}" for name in modules), "import sys; print('matplotlib' in sys.modules)"])
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, "HOME": str(tmp_path)}, capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "False\n", done.stderr
    assert not list(tmp_path.rglob("*matplotlib*"))
