"""Two processes for one run, or more: forked, or launched by torchrun, which imports everything again for seconds.

`run` works through a list of jobs in the processes. A job holds the settings of a run, `resume`, and `stop_at`: the
number of the forward pass of training, from 1, in which the last process, and only it, gets a SIGTERM.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from torch.distributed import TCPStore

from tests.training.commands import Command

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
_ORIGINAL = {}  # methods that were replaced


def torchrun(*arguments, log, **environment):
    """Start `torchrun` with two processes in a new session; its output goes to a file."""
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*TORCHRUN, *map(str, arguments)],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
            # On the CPU: a machine may have fewer GPUs than processes.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment},
        )


class Ranks:
    """The processes of a run, forked, with the environment that torchrun would give them."""

    def __init__(self, folder, *arguments, count=2, environment=None, **options):
        # The store through which the processes find each other; port 0 takes a free one.
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            **(environment or {}),
        }
        self.commands = [
            Command(folder, *arguments, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
            for rank in range(count)
        ]

    def wait(self):
        """The exit codes by rank."""
        return [command.wait() for command in self.commands]

    @property
    def text(self):
        """What the processes printed."""
        return self.commands[0].text


def run(jobs, folder, count=2):
    """The results of each process for each job: results[rank][job]."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    ranks = Ranks(folder, folder / "jobs.json", folder / "results", count=count, entry=_run_jobs)
    assert ranks.wait() == [0] * count, ranks.text
    return [json.loads((folder / f"results.{rank}").read_text()) for rank in range(count)]


def _run_jobs(arguments):
    jobs, results = arguments
    rank = int(os.environ["RANK"])
    found = [_work(job, rank) for job in json.loads(Path(jobs).read_text())]
    Path(f"{results}.{rank}").write_text(json.dumps(found))
    return 0


def _work(job, rank):
    from regard.errors import RegardError
    from regard_workbench.training import train

    told, sizes = [], {}
    _stop_at(job.get("stop_at", 0) if rank else 0)
    _record_sizes(sizes)
    try:
        result = train(job["values"], resume=job.get("resume"), quiet=True, tell=told.append)
    except RegardError as error:
        return {"error": str(error), "told": told}
    return {**asdict(result), "folder": str(result.folder), "told": told, **sizes}


def _record_sizes(sizes):
    """Record at each checkpoint how many elements of weights and optimiser state this process holds."""
    from regard_workbench.training import optim
    from regard_workbench.training.engines.eager import EagerEngine
    from regard_workbench.training.engines.sharding import local_shard

    state = _ORIGINAL.setdefault("state", EagerEngine.state)

    def recording(self, snapshot):
        weights = list(self.model.parameters())
        optimizer = [value for value in optim.optimizer_state(self.optimizer, self.model).values() if value.dim()]
        sizes["whole"] = sum(weight.numel() for weight in weights)
        sizes["kept"] = sum(local_shard(weight).numel() for weight in weights)
        sizes["remembered"] = sum(local_shard(value).numel() for value in optimizer)
        return state(self, snapshot)

    EagerEngine.state = recording


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
