"""A library of the command line that is not installed: the message names the extra that brings it."""

import subprocess
import sys

import pytest

from regard_workbench.cli import main as program
from regard_workbench.cli.main import main
from regard_workbench.extras import extra_of

REQUIREMENTS = [
    "torch>=2.11",
    'matplotlib>=3.9; extra == "workbench"',
    "scikit-learn>=1.5 ; extra == 'workbench'",
    'PyYAML>=6.0; extra == "workbench"',
    'ray>=2.40; extra == "cluster"',
    'ray>=2.40; extra == "dev"',
    'playwright>=1.49; extra == "dev"',
    'triton>=3.6; (sys_platform == "linux") and extra == "gpu"',
]


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("matplotlib", "workbench"),
        ("matplotlib.figure", "workbench"),
        ("sklearn.datasets", "workbench"),
        ("yaml", "workbench"),
        ("ray", "cluster"),
        ("triton", "gpu"),
        ("playwright", None),  # only for developers
        ("torch", None),  # comes with regard itself
        ("no_such_module", None),
    ],
)
def test_the_extra_of_a_module_is_read_from_the_metadata_of_the_package(module, extra):
    assert extra_of(module, REQUIREMENTS) == extra


def test_a_missing_library_ends_in_one_line_with_the_extra(monkeypatch, capsys):
    monkeypatch.setattr(program, "requirements", lambda: REQUIREMENTS)
    monkeypatch.setitem(sys.modules, "regard_workbench.cli.common.command", None)
    monkeypatch.delitem(sys.modules, "regard_workbench.cli.common.command")

    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name == "regard_workbench.cli.common.command":
                raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib.pyplot")

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert main(["list"]) == 1
    assert capsys.readouterr().err == (
        "regard: the Python package 'matplotlib' is not installed. Try pip install \"regard[workbench]\".\n"
    )


def test_an_import_error_of_another_kind_is_not_hidden(monkeypatch):
    monkeypatch.setattr(program, "requirements", lambda: REQUIREMENTS)

    def fail(arguments):
        raise ModuleNotFoundError("No module named 'my_helper'", name="my_helper")

    monkeypatch.setattr("regard_workbench.cli.common.command.run_command", fail)
    with pytest.raises(ModuleNotFoundError, match="my_helper"):
        main(["list"])


def test_the_program_itself_needs_nothing_but_python():
    """Without jsonargparse and rich it can still say what is missing."""
    code = (
        "import sys\n"
        "for name in ('jsonargparse', 'rich', 'torch', 'numpy', 'yaml'): sys.modules[name] = None\n"
        "import importlib.util\n"
        "spec = importlib.util.spec_from_file_location('program', sys.argv[1])\n"
        "spec.loader.exec_module(importlib.util.module_from_spec(spec))\n"
    )
    done = subprocess.run([sys.executable, "-IS", "-c", code, program.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
