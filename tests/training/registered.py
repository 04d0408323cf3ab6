"""The toy task and model in the registries while a file of tests runs; tests over all tasks must not meet them."""

import pytest

from regard.models.model import MODELS
from regard.tasks.task import TASKS
from tests.training import toy


@pytest.fixture(autouse=True, scope="module")
def toy_registered():
    """`toy` and `toy-net` can be asked for by name."""
    toy.register()
    yield
    TASKS._things.pop("toy")
    MODELS._things.pop("toy-net")
