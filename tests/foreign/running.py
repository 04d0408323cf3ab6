"""One run of a suite: pytest in a process of its own, in a checkout, with one of our plugins."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.foreign.outcomes import read

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "src"
ALONE = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}
OF_THE_PLUGINS = ("PLACE", "CALLS", "REFERENCE", "SHARP", "WRONG_SCALE")
QUIETLY = ["-q", "--no-header", "--tb=short", "-W", "ignore", "-p", "no:cacheprovider", "-o", "log_cli=0"]
NEEDED = {
    "pytorch": (
        "a checkout of github.com/pytorch/pytorch near the installed torch (of it, the folder test and pytest.ini), "
        "and pip install expecttest",
        "test/test_transformers.py",
        "import expecttest",
    ),
    "transformers": (
        "a checkout of github.com/huggingface/transformers (of it, src, tests, utils, conftest.py, pyproject.toml, "
        "setup.py and README.md), pip install parameterized, and the packages that its version requires",
        "tests/test_modeling_common.py",
        "import parameterized, transformers.modeling_utils",
    ),
}


class CannotRun(Exception):
    """The tests did not run to their end."""


@dataclass(frozen=True)
class Checkout:
    """A project of others, and where its tests run: without regard, and with it."""

    path: Path
    without: Path
    with_regard: Path


def prepare(project, path, out):
    """The checkout, after a look at what its tests need. Those of transformers run in copies, which may name regard."""
    what, expected, statement = NEEDED[project]
    if not (path / expected).is_file():
        raise CannotRun(f"{project}: there is no {expected} in {path}. Needed: {what}.")
    checkout = Checkout(path, path, path)
    tried = subprocess.run([sys.executable, "-c", statement], env=environment(checkout), capture_output=True, text=True)
    if tried.returncode:
        raise CannotRun(f"{project}: {tried.stderr.strip().splitlines()[-1]}. Needed: {what}.")
    if project == "pytorch":
        return checkout
    copies = [out / "transformers-without", out / "transformers-with-regard"]
    for copy in copies:
        _copy(path, copy)
    for file in (copies[1] / "tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if '"sdpa"' in text:
            file.write_text(text.replace('"sdpa"', '"regard"'), encoding="utf-8")
    return Checkout(path, *copies)


def _copy(path, copy):
    shutil.rmtree(copy, ignore_errors=True)
    for folder in ("tests", "utils"):
        shutil.copytree(path / folder, copy / folder)
    for name in ("conftest.py", "pyproject.toml", "setup.py", "README.md"):
        shutil.copy(path / name, copy)
    (copy / "src").symlink_to(path.resolve() / "src")


def environment(checkout, **settings):
    """That of this process, with our plugins, regard, and the checkout's own package in front."""
    paths = [HERE / "plugins", SOURCES, checkout.path.resolve() / "src", os.environ.get("PYTHONPATH", "")]
    inherited = {name: text for name, text in os.environ.items() if name not in OF_THE_PLUGINS}
    return {**inherited, **ALONE, "PYTHONPATH": os.pathsep.join(map(str, paths)), **settings}


def run(suite, checkout, label, out, **settings):
    """The outcomes of a suite in one kind of run, and how often regard was called. `label` names its files in `out`."""
    stem = out / f"{suite.name.replace('/', '-')}-{label}"
    results, calls, log = (stem.with_name(f"{stem.name}.{ending}") for ending in ("xml", "calls", "log"))
    for file in (results, calls):
        file.unlink(missing_ok=True)
    folder = checkout.with_regard if "PLACE" in settings else checkout.without
    command = [sys.executable, "-m", "pytest", "-p", suite.plugin, *suite.files, "-k", suite.choose, *QUIETLY]
    command.append(f"--junitxml={results.resolve()}")
    settings = {**suite.settings, **settings, "CALLS": str(calls.resolve())}
    with log.open("w") as file:
        code = subprocess.run(
            command,
            cwd=folder / suite.folder,
            env=environment(checkout, **settings),
            stdout=file,
            stderr=subprocess.STDOUT,
        ).returncode
    if code not in (0, 1) or not results.exists():  # 1: tests failed
        raise CannotRun(f"pytest ended with {code}; the end of {log}:\n{log.read_text()[-2000:]}")
    return read(results), int(calls.read_text()) if calls.exists() else 0
