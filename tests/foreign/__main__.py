"""Run the tests of PyTorch and of Hugging Face with regard in the original's place."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.foreign import suites
from tests.foreign.differences import DIFFERENCES
from tests.foreign.outcomes import compare
from tests.foreign.running import NEEDED, CannotRun, prepare, run

OUT = Path(__file__).resolve().parents[2] / "build" / "foreign"
SHOWN = 600  # letters of a failure


def main(arguments=None):
    """0: nothing differs that is not listed; 1: something does; 2: a suite cannot run, or there is no checkout."""
    parser = argparse.ArgumentParser(prog="python -m tests.foreign", description=__doc__)
    for project, (what, *_) in NEEDED.items():
        parser.add_argument(f"--{project}", type=Path, metavar="PATH", help=what)
    parser.add_argument("--models", nargs="+", default=suites.MODELS, metavar="NAME", help="models of transformers")
    parser.add_argument("--only", default="", metavar="TEXT", help="suites whose name contains this text")
    parser.add_argument("--out", type=Path, default=OUT, metavar="PATH", help="where results and logs go")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    code = 0 if options.pytorch or options.transformers else 2
    offered = {"pytorch": suites.of_pytorch(), "transformers": suites.of_transformers(tuple(options.models))}
    for project, (what, *_) in NEEDED.items():
        if (path := getattr(options, project)) is None:
            print(f"{project}: not run. It needs {project.upper()}=PATH: {what}.", flush=True)
            continue
        try:
            checkout = prepare(project, path, options.out)
            for suite in offered[project]:
                if options.only in suite.name and not passes(suite, checkout, options.out):
                    code = max(code, 1)
        except CannotRun as trouble:
            print(trouble, flush=True)
            code = 2
    return code


def passes(suite, checkout, out):
    """Whether a suite gives with regard what it gives without, but for what is listed. Prints what differs."""
    without, _ = run(suite, checkout, "without", out)
    with_regard, calls = run(suite, checkout, "with-regard", out, PLACE=suite.place)
    worse, explained, better = compare(suite.name, without, with_regard, DIFFERENCES)
    print(f"{suite.name}: without regard {_counted(without)}; with it {_counted(with_regard)}; {calls} calls of regard")
    for reason, number in Counter(entry.reason for entry in explained.values()).items():
        print(f"  {number} listed: {reason}")
    if better:
        print(f"  {len(better)} fail without regard alone: {', '.join(better)}")
    for test, message in worse.items():
        print(f"  NOT LISTED {test}\n    {message[:SHOWN]}")
    if not calls:
        print("  NOT TESTED: no test called regard")
    noticed = True
    if suite.notices:
        broken, _ = run(suite, checkout, "broken", out, PLACE=suite.place, **suite.notices)
        failing, _, _ = compare(suite.name, with_regard, broken, DIFFERENCES)
        noticed = bool(failing)
        print(f"  with {suite.notices}: {len(failing)} more tests fail{'' if noticed else ', BUT ONE HAS TO'}")
    sys.stdout.flush()
    return not worse and calls > 0 and noticed


def _counted(outcomes):
    counts = Counter(outcome.kind for outcome in outcomes.values())
    return ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
