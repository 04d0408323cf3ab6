"""The pictures of docs/gallery.md: the default of each field is trained, and one prediction of it is drawn.

python docs/make_gallery.py RUNS            # all; what is not trained yet in the folder RUNS is trained: minutes
python docs/make_gallery.py RUNS tag graph  # some
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from regard_workbench.cli.show.models_and_tasks import of_task
from regard_workbench.tasks import TASKS

IMAGES = Path(__file__).with_name("images")
NAMES = (
    "speech",
    "dialogue",
    "respond",
    "reply",
    "answer",
    "graph",
    "series",
    "recommend",
    "tag",
    "align",
    "match",
    "images",
    "video",
    "caption",
    "ask",
    "detect",
    "segment",
    "glimpse",
    "generate",
    "agent",
)


def commands(name: str) -> list[str]:
    """The two commands that make a picture, as the task's page and gallery.md show them."""
    train, _, predict, *_ = of_task(name, {})["commands"]
    return [train, predict]


def make(runs: Path, name: str) -> int:
    """Train where there is no run yet, and draw. 0 if all went well."""
    from regard_workbench.cli.main import main

    run = runs / name
    if not (run / "config.yaml").exists() and main(["train", name, "--out", str(run)]):
        return 1
    where = IMAGES / f"gallery-{name}.svg"
    return main(["predict", str(run), *TASKS[name].tried, "--figure", str(where)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="the folder of the runs")
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], help="tasks; all by default")
    given = parser.parse_args()
    sys.exit(max(make(given.runs, name) for name in given.names or NAMES))
