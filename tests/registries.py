"""Registries that are left as they were, for tests that load files which register something."""

from collections.abc import Iterator
from contextlib import contextmanager

from regard import models, nn, tasks


@contextmanager
def unchanged_registries() -> Iterator[None]:
    """Mechanisms, models and tasks that are registered inside are forgotten afterwards."""
    registries = (nn.MECHANISMS, models.MODELS, tasks.TASKS)
    before = [dict(registry._things) for registry in registries]
    try:
        yield
    finally:
        for registry, things in zip(registries, before, strict=True):
            registry._things.clear()
            registry._things.update(things)
