"""Scheduling: tests of the page that share a server run in one worker, so that it is started once.

A plugin of pytest, `-p tests.browser.scheduling` (`make test` says so for these tests). (pytest-xdist's own groups,
`--dist loadgroup`, have no effect under pytest 9.2.)
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from xdist.scheduler import LoadScopeScheduling

SERVED_BY = {"test_page_reading": "bert", "test_page_export": "bert", "test_page_writing": "story"}


class Together(LoadScopeScheduling):
    """One unit of work for each server, and one for each other test."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePosixPath(nodeid.split("::")[0])
        return SERVED_BY.get(path.stem, "page_models") if path.parent.name == "browser" else nodeid


def pytest_xdist_make_scheduler(config: Any, log: Any) -> Together:
    return Together(config, log)
