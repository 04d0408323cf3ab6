"""Two runs of the same tests, compared: what only one of them fails."""

import re
from dataclasses import dataclass
from xml.etree import ElementTree

FAILURES = ("failure", "error")


@dataclass(frozen=True)
class Outcome:
    """What became of a test: passed, skipped, failure, error, or absent; and what it said, once for each subtest."""

    kind: str
    messages: tuple[str, ...] = ()


def read(path):
    """The outcome of each test in a junit file, by class and name. A failed subtest is a failed test."""
    outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        outcome = Outcome("passed")
        for kind in ("skipped", *FAILURES):
            if reports := case.findall(kind):
                texts = tuple(f"{report.get('message') or ''}\n{report.text or ''}" for report in reports)
                outcome = Outcome(kind, texts)
        outcomes[f"{case.get('classname').split('.')[-1]}::{_original(case.get('name'))}"] = outcome
    return outcomes


def _original(name):
    """The name of a test before "sdpa" became "regard" in a copy: parameters are part of names."""
    return re.sub(r"_regard(?=_|$)", "_sdpa", name)


def compare(suite, without, with_regard, listed):
    """(worse, explained, better): names of tests by what regard changes.

    worse: {test: message}, without an entry in the list of differences; explained: {test: its entry}.
    """
    worse, explained, better = {}, {}, []
    for test in sorted(without.keys() | with_regard.keys()):
        before = without.get(test, Outcome("absent"))
        after = with_regard.get(test, Outcome("absent"))
        if before.kind == after.kind or {before.kind, after.kind} <= {*FAILURES}:
            continue
        # One test may try several models: where the first fails without regard, a later one may skip the test with it.
        if before.kind in FAILURES and after.kind in ("passed", "skipped"):
            better.append(test)
            continue
        entries = [entry for entry in listed if entry.explains(suite, test, after.messages)]
        if entries and before.kind == "passed" and after.kind in FAILURES:
            explained[test] = entries[0]
        else:
            worse[test] = f"{before.kind} without regard, {after.kind} with it: {' '.join(after.messages).strip()}"
    return worse, explained, better
