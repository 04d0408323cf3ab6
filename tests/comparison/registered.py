"""What `strangers.py` registers, while a file of tests runs; tests over all models must not meet it."""

from pathlib import Path

import pytest

from regard_workbench import plugins
from regard_workbench.models.parts.model import MODELS
from regard_workbench.tasks.parts.task import TASKS

STRANGERS = str(Path(__file__).with_name("strangers.py"))


@pytest.fixture(autouse=True, scope="module")
def strangers_registered():
    """`toy`, `toy-net`, `falls`, `deadlocks` and `refuses` can be asked for by name."""
    plugins.load([STRANGERS])
    yield
    plugins._LOADED.pop(STRANGERS)
    TASKS._things.pop("toy")
    for name in ("toy-net", "falls", "deadlocks", "refuses"):
        MODELS._things.pop(name)


def pauses_of(folder, calls, width=7):
    """A file for `--use` that lets a toy network of a width wait after so many batches, and the files it waits for.

    While a run waits, there is time to kill something on any machine.
    """
    files = [folder / f"go-on-{number}" for number in calls]
    told = ",".join(f"{number}:{width}:{file}" for number, file in zip(calls, files, strict=True))
    (folder / "pausing.py").write_text(f"import os\nos.environ['REGARD_TOY_PAUSE'] = {told!r}\n")
    return str(folder / "pausing.py"), files
