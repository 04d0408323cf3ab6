"""Batches collated ahead of the step that needs them, by processes of their own.

A batch is a function of the seed and its index, so processes can collate the next ones while a step runs, and a run
with loaders learns from the same batches as one without. Each loader is a fork of the run: it has the task and its data
already, and never touches a GPU. A batch comes back through memory that both processes share; one that does not fit
there comes through a pipe.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import pickle
import signal
import warnings
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from regard.errors import BadValue, RegardError
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training.signals import HANDLED, heartbeat

AHEAD = 2  # batches of each loader that are asked for before they are needed
ALIGNMENT = 64  # bytes, of the start of each tensor
ROOM = 1.25  # of the shared memory, in sizes of the first batch: texts differ in length
PATIENCE = 1.0  # seconds between two looks at whether a loader still lives

Part = tuple[torch.dtype, torch.Size, int]  # of a tensor in shared memory: dtype, shape, first byte


class LoaderDied(RegardError, RuntimeError):
    """A process that collates batches ended."""


class Loaders:
    """`loaders[index]` is batch `index`; the batches index + stride, index + 2 · stride, … are collated meanwhile.

    A batch is valid until the next one is asked for. Batches in another order are collated, too, only later.
    """

    def __init__(self, collate: Callable[[int], Batch], count: int, stride: int = 1) -> None:
        if "fork" not in multiprocessing.get_all_start_methods():
            raise BadValue("loaders: this system cannot fork a process. Use --loaders 0.")
        self.collate, self.count, self.stride = collate, count, stride
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.slots: list[mmap.mmap] = []  # slot n belongs to loader n % count
        self.asked: deque[tuple[int, int]] = deque()  # index and slot of each batch that was asked for
        self.free: deque[int] = deque()
        self.held: int | None = None  # the slot of the batch that was handed out last
        self.following = 0  # the index to ask for next

    def __getitem__(self, index: int) -> Batch:
        if not self.processes:
            first = self.collate(index)
            self._start(first)
            self._ask_from(index + self.stride)
            return first
        if self.held is not None:
            self.free.append(self.held)
            self.held = None
        if not self.asked or self.asked[0][0] != index:
            while self.asked:
                self._received()
            self._ask_from(index)
        self._ask()
        return self._received(hold=True)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
            process.join()
        self.pipes, self.processes = [], []

    def _start(self, example: Batch) -> None:
        size = sum(-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in example.tensors().values())
        self.slots = [mmap.mmap(-1, int(ROOM * size) + 1) for _ in range(AHEAD * self.count)]
        self.free.extend(range(len(self.slots)))
        context = multiprocessing.get_context("fork")
        for _ in range(self.count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(self.collate, self.slots, theirs, [*self.pipes, ours]))
            process.daemon = True
            with warnings.catch_warnings():
                # There are other threads (of torch and CUDA); a loader uses nothing that they lock.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def _ask_from(self, index: int) -> None:
        self.following = index
        self.free = deque(sorted(self.free))
        self._ask()

    def _ask(self) -> None:
        while self.free:
            slot = self.free.popleft()
            self.pipes[slot % self.count].send((self.following, slot))
            self.asked.append((self.following, slot))
            self.following += self.stride

    def _received(self, hold: bool = False) -> Batch:
        """The oldest batch that was asked for; its memory stays as it is if it is to be held."""
        _, slot = self.asked.popleft()
        loader = slot % self.count
        try:
            while not self.pipes[loader].poll(PATIENCE):
                heartbeat()
            message, layout = pickle.loads(self.pipes[loader].recv_bytes())
        except (EOFError, ConnectionError):
            self.processes[loader].join()
            code = self.processes[loader].exitcode
            raise LoaderDied(
                f"loaders: a process that collates batches ended (exit code {code}; -9: killed, often for memory). "
                "Try fewer --loaders, or none."
            ) from None
        if hold:
            self.held = slot
        else:
            self.free.append(slot)
        if isinstance(message, Exception):
            raise message
        batch: Batch = message
        if layout is None:
            return batch
        return batch.filled({name: _view(self.slots[slot], *place) for name, place in layout.items()})


def _view(memory: mmap.mmap, dtype: torch.dtype, shape: torch.Size, begin: int) -> Tensor:
    count = shape.numel()
    return (
        torch.frombuffer(memory, dtype=dtype, count=count, offset=begin).view(shape)
        if count
        else torch.empty(shape, dtype=dtype)
    )


def _serve(collate: Callable[[int], Batch], slots: list[mmap.mmap], pipe: Connection, others: list[Connection]) -> None:
    """Collate what is asked for until the run ends."""
    for connection in others:  # else a loader would not see that the run ended
        connection.close()
    for number in HANDLED:  # Ctrl-C goes to all processes of a terminal, and the run decides what it means
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
    gc.disable()  # what is garbage may hold memory of a GPU, which only the run may free
    torch.set_num_threads(1)  # threads of torch do not survive a fork
    while True:
        try:
            index, slot = pipe.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer = _packed(collate(index), slots[slot])
        except Exception as error:
            answer = _pickled(error)
        try:
            pipe.send_bytes(answer)
        except ConnectionError:
            return


def _packed(batch: Batch, memory: mmap.mmap) -> bytes:
    """A batch whose tensors were written to shared memory, and where they are there; None: they did not fit."""
    places: dict[str, Part] = {}
    begin = 0
    for name, tensor in batch.tensors().items():
        places[name] = (tensor.dtype, tensor.shape, begin)
        begin += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    if begin > len(memory):
        return pickle.dumps((batch, None))
    for name, tensor in batch.tensors().items():
        if tensor.numel():
            _view(memory, *places[name]).copy_(tensor)
    return pickle.dumps((batch.map(lambda tensor: tensor.new_empty(0)), places))


def _pickled(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps((error, None))
        pickle.loads(pickled)  # an exception with arguments of its own may not come back
    except Exception:
        pickled = pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), None))
    return pickled
