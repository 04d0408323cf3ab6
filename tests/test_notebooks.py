"""The notebooks run from top to bottom and print what they were committed with.

A cell tagged `varies` prints numbers of a training run, which another processor rounds differently; it only has to run.
"""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
by_notebook = pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in NOTEBOOKS])


def code_cells(path):
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def printed(outputs):
    """What a cell wrote and what its last line evaluates to, as text."""
    parts = []
    for output in outputs:
        found = output.get("text", output.get("data", {}).get("text/plain", ""))
        parts.append("".join(found))
    return "".join(parts).strip()


def run(cell, names, title):
    """Run a cell as a kernel does: its last expression is shown. Return what it prints."""
    body = ast.parse("".join(cell["source"]), title)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(body, title, "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), title, "eval"), names)
    return (shown.getvalue() + ("" if value is None else repr(value))).strip()


def test_there_are_three_notebooks():
    assert len(NOTEBOOKS) == 3


@pytest.mark.slow
@by_notebook
def test_a_notebook_runs_and_prints_what_it_was_committed_with(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path)):
        found = run(cell, names, f"{path.name} cell {number}")
        if "varies" not in cell["metadata"].get("tags", []):
            assert found == printed(cell["outputs"]), f"{path.name}, code cell {number}: run it again and save it"


@by_notebook
def test_a_notebook_is_small_and_holds_no_picture(path):
    assert path.stat().st_size < 30_000
    kinds = {kind for cell in code_cells(path) for output in cell["outputs"] for kind in output.get("data", {})}
    assert kinds <= {"text/plain"}


@pytest.mark.nightly
@pytest.mark.slow
@by_notebook
def test_a_notebook_runs_in_a_kernel(path, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, after in zip(code_cells(path), [c for c in notebook.cells if c.cell_type == "code"], strict=True):
        if "varies" not in before["metadata"].get("tags", []):
            assert printed(after.outputs) == printed(before["outputs"])
