"""Which of a sample of small changes to the source do the tests of a folder notice?

    python -m tests.mutation tests/masks --of src/regard/masks --count 30 --seed 7 --out masks.json

The tests run once, and each is noted with the functions that it enters; then, for every mutant, those that enter the
function it stands in, the quickest first, up to `--seconds` of them. All of it happens in a copy of the files that git
keeps, in a temporary folder: whatever ends the run, the sources stay as they are. The same source and seed give the
same mutants, so a run before and a run after a change to the tests compare.
"""

from __future__ import annotations

import argparse
import collections
import compileall
import json
import os
import py_compile
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.kept_files import ROOT, kept_files
from tests.mutation.mutants import Mutant, chosen

WALL = 900  # seconds after which a run that waits for something is ended


class Recorder:
    """A plugin of pytest that notes what each test entered, how long it took, and whether it passed."""

    def __init__(self, root: Path) -> None:
        self.source = str(root / "src")
        self.entered: set[tuple[str, int]] = set()
        self.tests: dict[str, dict] = {}
        self.setups: dict[str, set[tuple[str, int]]] = collections.defaultdict(set)

    def __call__(self, frame, event, _):
        code = frame.f_code
        if code.co_filename.startswith(self.source):
            self.entered.add((code.co_filename, code.co_firstlineno))

    def pytest_collection_finish(self, session):
        self.everywhere, self.entered = self.entered, set()

    def pytest_runtest_logreport(self, report):
        entry = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": True, "entered": set()})
        entry["seconds"] += report.duration
        entry["passed"] &= report.outcome == "passed"
        if report.when == "setup":  # a fixture of the file serves its other tests, too
            self.setups[report.nodeid.partition("::")[0]] |= self.entered
        entry["entered"] |= self.entered
        self.entered = set()

    def reaching(self) -> dict[str, dict]:
        for name, entry in self.tests.items():
            places = entry["entered"] | self.everywhere | self.setups[name.partition("::")[0]]
            entry["entered"] = sorted([str(Path(path).relative_to(Path(self.source).parent)), n] for path, n in places)
        return self.tests


class Selection:
    """A plugin of pytest that runs these tests alone, the quickest first."""

    def __init__(self, names: list[str]) -> None:
        self.order = {name: number for number, name in enumerate(names)}

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])


def forked(function: Callable[[], int], log: Path, seconds: int) -> tuple[int | None, float]:
    """The code that `function` returned in a process of its own, None where it was stopped; and its processor time."""
    before = os.times()
    process = os.fork()
    if process == 0:
        code = 99
        try:
            os.setsid()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            code = function()
        finally:
            sys.stdout.flush()
            os._exit(code)
    deadline = time.monotonic() + WALL
    while time.monotonic() < deadline:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        time.sleep(0.1)
    else:
        os.killpg(process, 9)
        _, status = os.waitpid(process, 0)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else None), spent


def run_pytest(arguments: list[str], plugin: object) -> int:
    import pytest

    return int(pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", *arguments], plugins=[plugin]))


def recorded(root: Path, places: list[str], options: list[str]) -> tuple[dict[str, dict], float]:
    notes = root / "tests.json"

    def note() -> int:
        import threading

        recorder = Recorder(root)
        sys.settrace(recorder)
        threading.settrace(recorder)
        code = run_pytest([*places, *options], recorder)
        sys.settrace(None)
        notes.write_text(json.dumps(recorder.reaching()))
        return code

    code, seconds = forked(note, root / "record.log", 4 * WALL)
    print(f"{places}: code {code}, {seconds:.0f} s; {(root / 'record.log').read_text().splitlines()[-1:]}", flush=True)
    return json.loads(notes.read_text()), seconds


def judged(mutant: Mutant, root: Path, tests: dict[str, dict], seconds: float, options: list[str]) -> dict:
    first, last = mutant.function
    names, left = [], seconds
    for name, entry in sorted(tests.items(), key=lambda pair: pair[1]["seconds"]):
        entered = any(path == mutant.path and first <= line <= last for path, line in entry["entered"])
        if entered and entry["passed"] and left > 0:
            names.append(name)
            left -= entry["seconds"]
    path = root / mutant.path
    source = path.read_bytes()
    number = source[: mutant.start].count(b"\n")
    before = source.decode().splitlines()[number].strip()
    after = mutant.apply(source).decode().splitlines()[number].strip()
    verdict, spent, witness = "not reached", 0.0, []
    if names:
        path.write_bytes(mutant.apply(source))
        files = sorted({name.partition("::")[0] for name in names})
        log = root / "mutant.log"
        code, spent = forked(lambda: run_pytest(["-x", *files, *options], Selection(names)), log, int(60 + 4 * seconds))
        path.write_bytes(source)
        verdict = {0: "survived", 5: "nothing ran", None: "stopped"}.get(code, "killed")
        witness = [line[:200] for line in log.read_text(errors="replace").splitlines() if line.startswith("FAILED")][:1]
    place = f"{mutant.path}:{number + 1}"
    print(f"{verdict:12} {place} {mutant.kind}: {before}  →  {after}  ({len(names)} tests, {spent:.0f} s)", flush=True)
    return {"place": place, "verdict": verdict, "before": before, "after": after, "tests": len(names),
            "witness": witness, "seconds": round(spent, 1)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="+", help="files and folders of tests")
    parser.add_argument("--of", nargs="+", required=True, help="files and folders of the source to change")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=60, help="of tests that run for one mutant")
    parser.add_argument("--options", default="", help="options for pytest, such as '--ignore=tests/browser'")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out and given.out.resolve()

    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder).resolve()
        for path in kept_files():
            copy = root / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
        # a changed file has the time of another: what is compiled is told by what the file says
        compileall.compile_dir(root / "src", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        os.chdir(root)
        sys.path[:] = [str(root / "src"), str(root), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        os.environ.update(PYTHONPATH=f"{root / 'src'}:{root}", OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        import pytest  # noqa: F401 - what every fork needs is loaded once
        import torch._dynamo
        import torch.utils.data  # noqa: F401

        assert "regard" not in sys.modules
        for name in [name for name in sys.modules if name == "tests" or name.startswith("tests.")]:
            del sys.modules[name]
        options = given.options.split()
        tests, seconds = recorded(root, given.tests, options)
        mutants = chosen(root, given.of, given.count, given.seed)
        verdicts = [judged(mutant, root, tests, given.seconds, options) for mutant in mutants]
    counts = collections.Counter(verdict["verdict"] for verdict in verdicts)
    killed = counts["killed"] + counts["stopped"]
    failed = [name for name, entry in tests.items() if not entry["passed"]]
    print(f"{killed} of {len(verdicts)} killed {dict(counts)}; {len(tests)} tests, {len(failed)} not passed, ", end="")
    print(f"{seconds:.0f} s of a processor")
    if out:
        summary = {"tests": len(tests), "not passed": failed, "seconds": round(seconds), "mutants": verdicts}
        out.write_text(json.dumps(summary, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
