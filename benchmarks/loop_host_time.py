"""What the host takes for a captured training step, by parts, without a GPU: its graphs launch nothing.

    python benchmarks/loop_host_time.py [--windows 40] [--group 8]

For each model the least processor time of several windows of steps: other processes on the machine only add to it.
What a GPU adds (copies, the launch, events) is measured by `benchmarks/small_check.py --only steps`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a script finds only what lies beside it

from benchmarks.small_checking.host import host_parts, without_device
from benchmarks.small_checking.training import CONTESTANTS, trainer_of

WINDOW = 320  # steps: a whole number of groups and of batches that are gathered together


def main() -> int:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=40)
    parser.add_argument("--group", type=int, default=1, help="steps in a graph")
    options = parser.parse_args()
    torch.set_num_threads(1)
    from regard_workbench.training.signals import Signals

    for task, model in CONTESTANTS[:2]:
        with tempfile.TemporaryDirectory() as folder, Signals() as signals:
            trainer = trainer_of(task, model, "cpu", False, folder, signals)
            with trainer.open(), without_device(trainer, options.group):
                for _ in range(2 * WINDOW):
                    trainer.advance()
                found = [host_parts(trainer, WINDOW, time.thread_time) for _ in range(options.windows)]
        print(f"{task}, {model}: microseconds of a step on the host, a part with those that it calls")
        for name in found[0]:
            if least := min(each[name] for each in found):
                print(f"  {name:24} {least:6.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
