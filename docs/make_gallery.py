"""The pictures of docs/gallery.md: the default of each field is trained, and one prediction of it is drawn.

python docs/make_gallery.py RUNS            # all; what is not trained yet in the folder RUNS is trained: minutes
python docs/make_gallery.py RUNS tag graph  # some
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

IMAGES = Path(__file__).with_name("images")
# What is predicted, by the name of the task.
PREDICTED = {
    "speech": ["--example", "7"],
    "dialogue": ["--text", "i want thai food | which part of town do you prefer ? | in the north please"],
    "answer": ["--example", "1"],
    "graph": ["--text", "303"],
    "series": ["--example", "100"],
    "recommend": ["--example", "3"],
    "tag": ["--text", "yesterday mr. Velko Brant of Tarnix Labs flew to Ordenburg"],
    "align": ["--text", "young bird finds tree and dog"],
    "match": ["--text", "seven | two seven nine one four"],
    "images": ["--example", "5"],
    "detect": ["--example", "11"],
    "segment": ["--example", "20"],
    "glimpse": ["--example", "25"],
    "agent": ["--example", "3"],
}


def commands(name: str) -> list[str]:
    """The two commands that make a picture, as gallery.md shows them."""
    return [
        f"regard train {name} --out runs/{name}",
        f"regard predict runs/{name} {shlex.join(PREDICTED[name])} --figure {name}.svg".replace("'", '"'),
    ]


def make(runs: Path, name: str) -> int:
    """Train where there is no run yet, and draw. 0 if all went well."""
    from regard.cli.main import main

    run = runs / name
    if not (run / "config.yaml").exists() and main(["train", name, "--out", str(run)]):
        return 1
    where = IMAGES / f"gallery-{name}.svg"
    return main(["predict", str(run), *PREDICTED[name], "--figure", str(where)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("names", nargs="*", choices=[*PREDICTED, []], help="tasks; all by default")
    given = parser.parse_args()
    sys.exit(max(make(given.runs, name) for name in given.names or PREDICTED))
