"""Kill `train` and `compare`'s worker again and again, ask every reader each time, and print the counts.

    python -m bench.kills --kills 1000
    python -m bench.kills --calls all      every file-system call: killed, half written, unsynced lost,
                                                failing, disk full from there on

Readers: evaluate, predict, view, resume, compare. A count under "wrong" is a reader that took another checkpoint than
the newest whole one calls the best, a traceback, a hang, or a run that did not end bit for bit as one nobody touched.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from bench.killing.ground import Ground
from bench.killing.trial import HOW

CHAIN = 4  # kills of one run, at most


def main(arguments: list[str] | None = None) -> int:
    """0 if nothing was wrong, else 1."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__.split("\n")[0])  # type: ignore
    parser.add_argument("--kills", type=int, default=0, help="kills at random moments")
    parser.add_argument("--calls", default="0", help="trials at file-system calls, a number or all")
    parser.add_argument("--how", choices=HOW, help="only these of the trials at calls")
    parser.add_argument(
        "--part", default="1/1", help="the I-th of N parts of the calls, so that N processes share them"
    )
    parser.add_argument("--lies", type=int, default=0, help="kills on a disk whose fsync lied")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where runs are made (default: a temporary folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        counts = run(Ground(Path(folder)), options)
    print(json.dumps(counts, indent=1))
    return 1 if counts["wrong"] else 0


def run(ground: Ground, options: argparse.Namespace) -> dict[str, object]:
    """Do what was asked for, as long as there is time."""
    own, started = random.Random(options.seed), time.monotonic()
    done: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []

    def note(what: str, count: int, words: list[str]) -> None:
        done[what] += count
        for text in words:
            print(f"WRONG {what}: {text}", file=sys.stderr, flush=True)
        wrong.extend(words)

    def left() -> bool:
        return time.monotonic() - started < options.seconds

    ways = [options.how] if options.how else HOW
    places = [(how, at) for how in ways for at in range(1, len(ground.calls) + 1)]
    own.shuffle(places)
    part, parts = map(int, options.part.split("/"))
    chosen = places if options.calls == "all" else places[: int(options.calls)]
    for how, at in chosen[part - 1 :: parts]:
        if left():
            note(how, 1, ground.at_call(at, how))
    for number in range(options.lies):
        if left():
            note("lying fsync", 1, ground.lied_to(own.randint(1, len(ground.calls)), number))
    while done["random moment"] < options.kills and left():
        count = min(own.randint(1, CHAIN), options.kills - done["random moment"])
        note("random moment", count, ground.at_moments(own, count))
    return {
        "tried": done.total(),
        "trials": dict(done),
        "calls_of_a_run": len(ground.calls),
        "wrong": len(wrong),
        "seconds": round(time.monotonic() - started, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
