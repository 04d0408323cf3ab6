"""Runs of several processes, one after the other: `torchrun … -m tests.training.torchrun JOBS.json RESULTS`.

A job holds the settings of a run, `resume`, and `stop_at`: the number of the forward pass of training, from 1, in which
the last process, and only it, gets a SIGTERM. Each process writes its results to RESULTS.0, RESULTS.1 …
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
_ORIGINAL = {}  # methods that were replaced


def start(*arguments, log, **environment):
    """Start `torchrun` with two processes in a new session; its output goes to a file."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*TORCHRUN, *map(str, arguments)], cwd=ROOT, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )  # fmt: skip


def run(jobs, folder):
    """The results of each process for each job: results[rank][job]."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    module = ("-m", "tests.training.torchrun", folder / "jobs.json", folder / "results")
    done = start(*module, log=folder / "log.txt").wait(300)
    assert done == 0, (folder / "log.txt").read_text()
    return [json.loads((folder / f"results.{rank}").read_text()) for rank in (0, 1)]


def _work(job, rank):
    from regard.errors import RegardError
    from regard.training import train

    told, sizes = [], {}
    _stop_at(job.get("stop_at", 0) if rank else 0)
    _record_sizes(sizes)
    try:
        result = train(job["values"], resume=job.get("resume"), quiet=True, tell=told.append)
    except RegardError as trouble:
        return {"error": str(trouble), "told": told}
    return {**asdict(result), "folder": str(result.folder), "told": told, **sizes}


def _record_sizes(sizes):
    """Record at each checkpoint how many elements of weights and optimiser state this process holds."""
    from regard.training import optim
    from regard.training.distributed.sharding import local_shard
    from regard.training.learner import Learner

    state = _ORIGINAL.setdefault("state", Learner.state)

    def recording(self, snapshot):
        weights = list(self.model.parameters())
        optimizer = [
            value for value in optim.optimizer_state(self.optimizer, self.model).values() if value.dim()
        ]
        sizes["whole"] = sum(weight.numel() for weight in weights)
        sizes["kept"] = sum(local_shard(weight).numel() for weight in weights)
        sizes["remembered"] = sum(local_shard(value).numel() for value in optimizer)
        return state(self, snapshot)

    Learner.state = recording


def _stop_at(number):
    """Send a SIGTERM to this process in forward pass `number` of training."""
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
    """Run all jobs in one of the processes."""
    import torch

    from tests.training import toy

    toy.register()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    found = [_work(job, rank) for job in json.loads(Path(jobs).read_text())]
    Path(f"{results}.{rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
