"""The loss of one language model under several protocols: how long a window is, and how much of it is only read.

    python -m benchmarks.windows runs/shakespeare --protocols 256:0,512:0,512:0.5 --device cuda

With an overlap of 0.5, the first half of a window is context that an earlier window was asked for, so that every token
but the first few has at least half a window before it. Every token but the first is asked for once under all of them.
"""

from __future__ import annotations

import argparse
import json

from regard.errors import BadValue
from regard.support.arguments import share, whole_number
from regard_workbench.tasks.language import Language
from regard_workbench.training.evaluation import evaluate
from regard_workbench.training.loading import load


def main() -> None:
    """Read the command line, measure, and print one line of JSON for each protocol."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the folder of a run")
    parser.add_argument("--protocols", default="256:0", help="LENGTH:OVERLAP, separated by commas")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="only so many windows, to try the command")
    given = parser.parse_args()
    loaded = load(given.run, device=given.device)
    task = loaded.task
    if not isinstance(task, Language):
        raise BadValue(f"run: expected a language model, {given.run} is a run of {task.name}.")
    longest = task.context
    for protocol in given.protocols.split(","):
        length, _, overlap = protocol.partition(":")
        task.context, task.overlap = (whole_number("context", int(length), 2), share("overlap", float(overlap or 0)))
        if task.context > longest:
            raise BadValue(f"--protocols: the model reads windows of at most {longest}, got {task.context}.")
        found = evaluate(task, loaded.model, given.split, batch_size=64, limit=given.limit)
        said = {"windows": task.context, "overlap": task.overlap, "split": given.split, "metrics": found}
        print(json.dumps({**said, "checkpoint": loaded.checkpoint, "sha256": loaded.sha256}), flush=True)


if __name__ == "__main__":
    main()
