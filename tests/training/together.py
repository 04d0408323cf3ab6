"""Runs for several processes, one after the other: `torchrun … -m tests.training.together JOBS.json RESULTS`.

A job holds the settings of a run, `resume`, and `stop_at`: in that forward pass of training, counted from 1, the last
process, and only it, gets a SIGTERM. Each process writes what came out to RESULTS.0, RESULTS.1 …
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_ORIGINAL = {}  # methods that a job replaced


def start(*arguments, log, **environment):
    """`torchrun` with two processes, in a session of its own; what it says goes to a file."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*TORCHRUN, *map(str, arguments)], cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip


def run(jobs, folder):
    """What each process returned for each job: results[process][job]."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    module = ("-m", "tests.training.together", folder / "jobs.json", folder / "results")
    done = start(*module, log=folder / "log.txt").wait(300)
    assert done == 0, (folder / "log.txt").read_text()
    return [json.loads((folder / f"results.{place}").read_text()) for place in (0, 1)]


def _work(job, place):
    from regard.errors import RegardError
    from regard.training import train

    told, sizes = [], {}
    _stop_at(job.get("stop_at", 0) if place else 0)
    _weigh(sizes)
    try:
        result = train(job["values"], resume=job.get("resume"), quiet=True, tell=told.append)
    except RegardError as trouble:
        return {"error": str(trouble), "told": told}
    return {**asdict(result), "folder": str(result.folder), "told": told, **sizes}


def _weigh(sizes):
    """Note, whenever a checkpoint is made, how many numbers this process keeps, and how many there are."""
    from regard.training import optim
    from regard.training.distributed.sharding import here
    from regard.training.learner import Learner

    tensors = _ORIGINAL.setdefault("tensors", Learner.tensors)

    def weighing(self, boundary):
        weights = list(self.model.parameters())
        memory = [value for value in optim.memory(self.optimizer, self.model).values() if value.dim()]
        sizes["whole"] = sum(weight.numel() for weight in weights)
        sizes["kept"] = sum(here(weight).numel() for weight in weights)
        sizes["remembered"] = sum(here(value).numel() for value in memory)
        return tensors(self, boundary)

    Learner.tensors = weighing


def _stop_at(number):
    """Let a signal arrive in this process's so many-th forward pass of training."""
    from tests.training.toy import ToyNet

    calls, forward = 0, _ORIGINAL.setdefault("forward", ToyNet.forward)

    def counting(self, batch):
        nonlocal calls
        calls += self.training
        if self.training and calls == number:
            os.kill(os.getpid(), signal.SIGTERM)
        return forward(self, batch)

    ToyNet.forward = counting


def main(jobs, results):
    """Run all jobs as one of the processes."""
    import torch

    from tests.training import toy

    toy.register()
    torch.set_num_threads(1)
    place = int(os.environ["RANK"])
    found = [_work(job, place) for job in json.loads(Path(jobs).read_text())]
    Path(f"{results}.{place}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
