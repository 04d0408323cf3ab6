"""Run tests and print, as JSON, how many cases they tried and how many were wrong.

    python -m bench.counted tests/viewer/test_fuzzed_requests.py -m nightly

A test is one case; a Hypothesis test is as many as it drew; a test that loops says how many with
`record_property("tried", count)`. What was skipped is counted by itself, so that nobody takes it for tried.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Generator
from typing import Any

import pytest


class Counts:
    """A plugin of pytest that counts cases."""

    def __init__(self) -> None:
        self.tried = self.wrong = self.skipped = 0
        self.failed: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
        """Count the draws of Hypothesis; any other test is one case."""
        handle = getattr(pyfuncitem.obj, "hypothesis", None)
        if handle is None:
            self.tried += 1
            return (yield)
        real = handle.inner_test

        @functools.wraps(real)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.tried += 1
            return real(*arguments, **options)

        handle.inner_test = counted
        try:
            return (yield)
        finally:
            handle.inner_test = real

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count failures of a test and of what it needs, and the cases that a test says it looped over."""
        if report.failed:
            self.wrong += 1
            self.failed.append(report.nodeid)
        if report.skipped:
            self.skipped += 1
            self.tried -= report.when == "call"
        if report.when == "call":
            self.tried += sum(int(str(count)) - 1 for name, count in report.user_properties if name == "tried")


def main(arguments: list[str]) -> int:
    """0 if nothing was wrong and something was tried, else 1."""
    counts = Counts()
    # The words of pytest go to stderr: stdout holds the counts alone.
    out, sys.stdout = sys.stdout, sys.stderr
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[counts])
    sys.stdout = out
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        counts.wrong += 1
        counts.failed.append(f"pytest ended with {code!r}")
    print(json.dumps(vars(counts), indent=1))
    return int(counts.wrong > 0 or counts.tried == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
