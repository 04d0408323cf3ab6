"""Several processes that work together, through gloo if nothing else is said, and answer calls of a test.

`Ranks(2).run(function, *arguments)` calls an importable function in every process and returns the answers by rank.
Tensors travel as numpy arrays.
"""

import os
import traceback

import torch

from tests.training.commands import context

_LIMIT = 120  # seconds to wait for an answer


class Ranks:
    """Processes that are started once and stay until `close`."""

    def __init__(self, count, folder, backend="gloo"):
        self.count, self.pipes, self.processes = count, [], []
        for rank in range(count):
            mine, theirs = context.Pipe()
            arguments = (rank, count, str(folder / f"store{count}"), theirs, backend)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(mine)
            self.processes.append(process)

    def send(self, function, *arguments):
        for pipe in self.pipes:
            pipe.send((function, arguments))

    def answer(self, rank):
        """What the call returned in one process; raises AssertionError with its traceback if it raised."""
        pipe = self.pipes[rank]
        assert pipe.poll(_LIMIT), f"rank {rank} does not answer"
        raised, found = pipe.recv()
        assert not raised, f"rank {rank}: {found}"
        return found

    def run(self, function, *arguments):
        self.send(function, *arguments)
        return [self.answer(rank) for rank in range(self.count)]

    def close(self):
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()
            process.join(30)
            process.kill()


def _serve(rank, count, store, pipe, backend):
    import torch.distributed as dist

    torch.set_num_threads(1)
    place = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
    os.environ.update({name: str(number) for name, number in place.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    if backend == "nccl":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.FileStore(store, count), rank=rank, world_size=count)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        torch.manual_seed(0)
        try:
            answer = (False, function(*arguments))
        except Exception:
            answer = (True, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()
