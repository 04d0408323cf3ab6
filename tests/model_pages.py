"""What `regard show` says of a model or a task, made once for all tests that read it: drawing a network runs it."""

import copy
import functools
from typing import Any

from regard_workbench import models, tasks
from regard_workbench.cli.common import catalogue
from regard_workbench.cli.show import facts


@functools.cache
def _made(place: str, registered: tuple[str, ...]) -> dict[str, Any]:
    found = catalogue.find(place)
    assert isinstance(found, catalogue.Item)
    return facts.of_value(found)


def facts_of(place: str) -> dict[str, Any]:
    """The facts of `models.decoder`, `tasks.dates`, `decoder(layers=8)`, …; each caller has a copy of its own.

    A page names the models and tasks that go together. Tests register toys, so pages are kept for each set of names.
    """
    return copy.deepcopy(_made(place, (*models.names(), *tasks.names())))
