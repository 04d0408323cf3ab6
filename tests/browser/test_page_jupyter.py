"""`seen.show()` and `seen.plot()` in a real JupyterLab, driven as a user would: open the notebook, run it, look.

JupyterLab is no dependency of regard. Install it into a folder of its own and name the folder:

    pip install --target FOLDER jupyterlab ipykernel jupyterlab_widgets
    REGARD_JUPYTER=FOLDER python -m pytest -m nightly tests/browser/test_page_jupyter.py
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CELLS = [
    "import torch, regard\n"
    "torch.manual_seed(3)\n"
    "model = torch.nn.MultiheadAttention(12, 3, batch_first=True).eval()\n"
    "x = torch.randn(1, 7, 12)\n"
    "with torch.no_grad(), regard.observe(model) as seen:\n"
    "    model(x, x, x)",
    "seen.plot()",
    "seen.show(list('abcdefg'))",
]


def notebook(path):
    """A notebook of the cells, not run yet."""
    cells = [
        {
            "cell_type": "code",
            "id": f"cell{number}",
            "execution_count": None,
            "metadata": {},
            "outputs": [],
            "source": source,
        }
        for number, source in enumerate(CELLS)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": cells}
    path.write_text(json.dumps(made))


@pytest.fixture
def lab(tmp_path):
    """The address of a JupyterLab whose only file is the notebook."""
    folder = os.environ.get("REGARD_JUPYTER")
    if not folder:
        pytest.skip("set REGARD_JUPYTER to a folder with JupyterLab (the head of this file says how)")
    notebook(tmp_path / "look.ipynb")
    kernels = tmp_path / "share" / "kernels" / "python3"
    kernels.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"}))
    shared = Path(folder) / "share" / "jupyter"
    surroundings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), folder, os.environ.get("PYTHONPATH", "")]),
        "JUPYTER_PATH": os.pathsep.join([str(tmp_path / "share"), str(shared)]),
        "JUPYTERLAB_DIR": str(shared / "lab"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0", "--IdentityProvider.token=secret", "--allow-root"]
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={tmp_path}"]
    process = subprocess.Popen(
        command, env=surroundings, cwd=tmp_path, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    )
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/lab", line):  # the token is not shown
                yield f"http://127.0.0.1:{found[1]}/lab/tree/look.ipynb?token=secret"
                return
        raise RuntimeError("".join(said)[-3000:])
    finally:
        process.terminate()
        process.wait(20)
        process.stderr.close()


@pytest.mark.nightly
def test_a_notebook_shows_the_figure_and_the_page(browser, lab):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(180_000)
    page.goto(lab)
    page.locator(".jp-Notebook-cell").nth(2).wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    figure = page.locator(".jp-OutputArea-output img").first
    figure.wait_for()
    assert figure.bounding_box()["width"] > 200  # a picture, not the words "<Figure …>"
    view = page.locator(".regard-notebook")
    view.wait_for()
    view.get_by_test_id("cell-0-2").click()  # a head: the kernel answers
    view.get_by_test_id("matrix").wait_for()
    page.wait_for_function(
        "() => document.querySelector('.regard-notebook [data-testid=matrix]').dataset.ready === 'true'"
    )
    assert view.get_by_test_id("tab-causes").count() == 0  # no model is open there
    page.close()
