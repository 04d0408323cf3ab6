"""Registries that are left as they were, for tests that load files which register something."""

from collections.abc import Iterator
from contextlib import contextmanager

from regard import nn
from regard_workbench import models, tasks


@contextmanager
def unchanged_registries() -> Iterator[None]:
    """Mechanisms, models and tasks that are registered inside are forgotten afterwards."""
    registries = (nn.MECHANISMS, models.MODELS, tasks.TASKS)
    before = [dict(registry._things) for registry in registries]
    try:
        yield
    finally:
        for registry, things in zip(registries, before, strict=True):
            for name in registry._things.keys() - things.keys() - registry._modules.keys():
                del registry._things[name]
            registry._things.update(things)  # those that were replaced
