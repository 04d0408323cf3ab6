"""Which of a sample of small changes to the source do the tests of a folder notice?

    python -m tests.mutation tests/masks --of src/regard/masks --count 30 --seed 7 --out before.json
    python -m tests.mutation tests/masks --of src/regard/masks --count 30 --seed 7 --again before.json --out after.json

The tests run once, and each is noted with the functions that it enters; then, for every mutant, those that enter the
function it stands in, the quickest first, up to `--seconds` of them. `--again` asks the tests that noticed a mutant
before, and where they are gone, or notice nothing, all that were chosen for it. The same source and seed give the same
mutants. All of it happens in a copy of the files that git keeps, in a temporary folder: whatever ends the run, even
SIGKILL, the sources stay as they are.
"""

import argparse
import collections
import compileall
import json
import os
import py_compile
import resource
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.kept_files import ROOT, kept_files
from tests.mutation.mutants import chosen


class Recorder:
    """A plugin of pytest that notes which functions each test enters, how long it takes, and whether it passes."""

    def __init__(self, root):
        self.source, self.entered, self.tests = str(root / "src"), set(), {}
        self.of_fixtures = collections.defaultdict(set)  # they serve the other tests of a file, too

    def __call__(self, frame, event, _):
        if frame.f_code.co_filename.startswith(self.source):
            self.entered.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    def pytest_collection_finish(self, session):
        self.at_import, self.entered = self.entered, set()

    def pytest_runtest_logreport(self, report):
        note = self.tests.setdefault(report.nodeid, {"seconds": 0.0, "passed": True, "entered": set()})
        note["seconds"] += report.duration
        note["passed"] &= report.outcome == "passed"
        note["entered"] |= self.entered
        if report.when == "setup":
            self.of_fixtures[report.nodeid.partition("::")[0]] |= self.entered
        self.entered = set()

    def notes(self):
        for name, note in self.tests.items():
            places = note["entered"] | self.at_import | self.of_fixtures[name.partition("::")[0]]
            note["entered"] = [(os.path.relpath(path, Path(self.source).parent), line) for path, line in places]
        return self.tests


class Selection:
    """A plugin of pytest that runs these tests alone, in this order, and notes which of them fail."""

    def __init__(self, names, failures):
        self.order, self.failures = {name: number for number, name in enumerate(names)}, failures

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted((item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failures.write_text(report.nodeid)


def forked(root, arguments, plugin, seconds, after=lambda: None):
    """pytest in a process of its own: its code, None where it took more processor time, and the time."""
    before = os.times()
    process = os.fork()
    if process == 0:
        code = 99
        try:
            output = os.open(root / "output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            signal.alarm(20 * seconds)  # a mutant may wait for what never comes
            import pytest

            code = int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments], plugins=[plugin]))
            after()
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    times = os.times()
    spent = times.children_user + times.children_system - before.children_user - before.children_system
    return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else None), spent


def recorded(root, places):
    recorder = Recorder(root)
    sys.settrace(recorder)
    _, seconds = forked(root, places, recorder, 7200, lambda: (root / "notes").write_text(json.dumps(recorder.notes())))
    sys.settrace(None)
    print(places, f"{seconds:.0f} s,", (root / "output.log").read_text().splitlines()[-1], flush=True)
    return json.loads((root / "notes").read_text()), seconds


def tests_of(mutant, tests, seconds):
    names = []
    for name, note in sorted(tests.items(), key=lambda pair: pair[1]["seconds"]):
        lines = [line for path, line in note["entered"] if path == mutant.path]
        if seconds > 0 and note["passed"] and any(mutant.function[0] <= line <= mutant.function[1] for line in lines):
            names.append(name)
            seconds -= note["seconds"]
    return names


def judge(mutant, root, names, seconds):
    """The verdict of these tests, the test that failed, and the processor time."""
    files = sorted({name.partition("::")[0] for name in names if (root / name.partition("::")[0]).exists()})
    if not files:
        return "not reached", "", 0.0
    path, failures = root / mutant.path, root / "failures"
    source = path.read_bytes()
    failures.write_text("")
    path.write_bytes(mutant.apply(source))
    code, spent = forked(root, ["-x", *files], Selection(names, failures), int(90 + 4 * seconds))
    path.write_bytes(source)
    verdict = {0: "survived", 5: "not reached", None: "killed by time"}.get(code, "killed")
    return verdict, failures.read_text(), spent


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="+", help="files and folders of tests")
    parser.add_argument("--of", nargs="+", required=True, help="files and folders of the source to change")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=30, help="of tests that run for one mutant")
    parser.add_argument("--again", type=Path, help="what --out wrote before a change to the tests")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    out, before = options.out.resolve(), json.loads(options.again.read_text()) if options.again else []

    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder).resolve()
        for path in kept_files():
            (root / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, root / path.relative_to(ROOT))
        # A mutant may have the size and the time of its source: compiled files are told by what the source says.
        compileall.compile_dir(root / "src", quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        os.chdir(root)
        sys.path[:] = [str(root / "src"), str(root), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        os.environ.update(PYTHONPATH=f"{root / 'src'}:{root}", OMP_NUM_THREADS="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        import pytest  # noqa: F401 - what every fork needs is loaded once

        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "regard")]:
            del sys.modules[name]
        tests, seconds = ({}, 0.0) if before else recorded(root, options.tests)
        verdicts = []
        for number, mutant in enumerate(chosen(root, options.of, options.count, options.seed)):
            source = (root / mutant.path).read_bytes()
            line = source[: mutant.start].count(b"\n")
            lines = [text.decode().splitlines()[line].strip() for text in (source, mutant.apply(source))]
            names = before[number]["tests"] if before else tests_of(mutant, tests, options.seconds)
            verdict, witness, spent = "survived" if names else "not reached", "", 0.0
            if before and before[number]["witness"]:
                verdict, witness, spent = judge(mutant, root, [before[number]["witness"]], options.seconds)
            if not verdict.startswith("killed") and (not before or before[number]["verdict"].startswith("killed")):
                verdict, witness, spent = judge(mutant, root, names, options.seconds)
            print(f"{verdict:14} {mutant.path}:{line + 1}: {' → '.join(lines)} ({spent:.0f} s) {witness}", flush=True)
            place = {"path": mutant.path, "line": line + 1, "kind": mutant.kind, "lines": lines}
            verdicts.append({**place, "verdict": verdict, "witness": witness, "tests": names})
    counts = collections.Counter(verdict["verdict"] for verdict in verdicts)
    print(dict(counts), f"of {len(verdicts)}; {len(tests)} tests, {seconds:.0f} s of a processor")
    out.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
