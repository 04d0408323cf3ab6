"""Registers the toy task and model while a test file runs; tests over all tasks must not see them."""

import pytest

from regard_workbench.models.parts.model import MODELS
from regard_workbench.tasks.parts.task import TASKS
from tests.training import toy


@pytest.fixture(autouse=True, scope="module")
def toy_registered():
    """Make `toy` and `toy-net` known by name."""
    toy.register()
    yield
    TASKS._things.pop("toy")
    MODELS._things.pop("toy-net")
