"""A whole step as one CUDA graph: on a GPU, where batches come in few shapes, Python's part of the time is gone.

The first steps run as usual, on a side stream, as capturing asks for; they are real steps. A shape of batches that has
come a few times is recorded and replayed, each in a graph of its own and all in the same memory; a batch of another
shape, such as an epoch's last one, runs as usual. Where shapes hardly ever repeat, as with texts of any length, nothing
is recorded. A compiled model is compiled by those first steps, and its kernels are recorded like any others.

Nobody waits for a replay: what a step found comes back later, as a `Flight`. An update that must not happen because the
loss is no number is left out on the device itself, and so is every update after it, so that whoever reads the result
finds the weights as they were before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.implementations import HAS_TRITON
from regard.tasks.batch import Batch
from regard.training.config import Config
from regard.training.hardware import Hardware
from regard.training.step import NonFinite, Step, Taken

WARMUP = 3  # usual steps of a shape before the recording
PATIENCE = 24  # batches for each time that the commonest shape came: with more of them, shapes do not repeat
MOST = 32  # shapes that are recorded
AHEAD = 16  # steps that may be under way before somebody waits for the first of them
ALIGNED = 64  # bytes, where a tensor of a batch begins
MOST_PINNED = (
    2**25
)  # bytes for the batches of one shape on the host; where they are larger, one place must do


def refusal(config: Config, hardware: Hardware) -> str:
    """Why a step cannot be recorded here; empty if it can be tried."""
    if not config.graph:
        return "graph is switched off"
    if hardware.device.type != "cuda":
        return "there is no GPU in this run"
    if config.accumulate != 1:
        return "a step is made of several batches"
    if not hardware.alone:
        return "several processes share the run"
    if hardware.accelerator.scaler is not None:
        return "16-mixed scales its loss"
    return ""


class Flight:
    """A step that was sent to the device. `landed` waits for it, and raises what a step raises."""

    def __init__(self, slot: Tensor, arrived: torch.cuda.Event, check: Callable[..., None]) -> None:
        self._slot, self._arrived, self._check = slot, arrived, check
        self._found: list[float] | None = None

    @property
    def ready(self) -> bool:
        """Whether nobody would have to wait."""
        return self._found is not None or bool(self._arrived.query())

    def read(self) -> list[float]:
        """Loss, norm and whether the update was left out, good or bad."""
        if self._found is None:
            self._arrived.synchronize()
            self._found = self._slot.tolist()
        return self._found

    def landed(self) -> Taken:
        """What the step found; `NonFinite` if it, or one before it, was not taken."""
        loss, norm, spoilt = self.read()
        self._check(loss, norm, spoilt)
        return Taken(loss, norm)


class Packed:
    """The tensors of a batch in one piece of memory on the device, and pinned places on the host to send them from.

    One copy then does for all of them. From memory that is not pinned, it would wait for all that the device has to do.
    """

    def __init__(self, batch: Batch, slots: int) -> None:
        tensors = batch.tensors()
        ends, total = {}, 0
        for name, tensor in tensors.items():
            begin = -(-total // ALIGNED) * ALIGNED
            total = begin + tensor.numel() * tensor.element_size()
            ends[name] = (begin, total)
        device = batch.device
        slots = slots if slots * total <= MOST_PINNED else 1

        def parts(memory: Tensor) -> dict[str, Tensor]:
            return {
                name: memory[slice(*ends[name])].view(t.dtype).view(t.shape) for name, t in tensors.items()
            }

        self.memory = torch.empty(total, dtype=torch.uint8, device=device)
        self.parts = parts(self.memory)
        pinned = device.type == "cuda"
        self.rooms = [torch.empty(total, dtype=torch.uint8, pin_memory=pinned) for _ in range(slots)]
        self.staged = [parts(room) for room in self.rooms]
        self.left: list[Any] = [None] * slots  # events: when the device has read a room
        for name, tensor in tensors.items():
            self.parts[name].copy_(tensor)

    def put(self, batch: Batch, number: int) -> None:
        """Put another batch of the same shape in the place, from the host or from the device; nobody waits."""
        tensors = batch.tensors()
        if batch.device == self.memory.device and self.memory.is_cuda:
            for name, tensor in tensors.items():
                self.parts[name].copy_(tensor, non_blocking=True)
            return
        room = number % len(self.rooms)
        if self.left[room] is not None:
            self.left[room].synchronize()
        for name, tensor in tensors.items():
            self.staged[room][name].copy_(tensor)
        self.memory.copy_(self.rooms[room], non_blocking=True)
        if self.memory.is_cuda:
            self.left[room] = self.left[room] or torch.cuda.Event()
            self.left[room].record()


class Recording(NamedTuple):
    """A step for batches of one shape: what to replay, where its batch has to lie, where its result will."""

    graph: torch.cuda.CUDAGraph
    inputs: Packed
    found: Tensor
    table: Tensor | None = None  # where its gradients lie


class GraphedStep:
    """`Step`, recorded once a shape of batches has come a few times. Other shapes, and what fails, run as usual.

    `ahead`: how many steps may be under way; 0 waits for each of them. `place` brings a batch to the device.
    """

    def __init__(
        self,
        step: Step,
        optimizer: torch.optim.Optimizer,
        tell: Callable[[str], None],
        ahead: int = 0,
        place: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        self.step, self.optimizer, self.tell, self.ahead, self.place = step, optimizer, tell, ahead, place
        self.usual = False
        self.on_device = False  # whether the last step was replayed, so that nothing was drawn on the host
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.stream: torch.cuda.Stream | None = None
        self.recorded: dict[tuple[Any, ...], Recording] = {}
        self.spoilt: Tensor | None = None  # 1 from the first step on whose loss or gradient is no number
        self.slots: Tensor | None = None  # where results arrive on the host, one after the other
        self.pool: Any = None  # the memory of all graphs
        self.flights: list[Flight | None] = [None] * max(1, ahead)
        self.count = 0
        if optimizer.param_groups[0]["params"][0].is_cuda:
            step.update = _update(optimizer, step.limit)

    def __call__(self, batches: Iterable[Batch]) -> Taken | Flight:
        """Take one step."""
        (batch,) = batches
        self.on_device = False
        if self.usual:
            return self._as_usual(batch)
        shape = layout(batch)
        self.seen[shape] += 1
        if shape not in self.recorded and self.seen[shape] > WARMUP and len(self.recorded) < MOST:
            try:
                self.recorded[shape] = self._record(batch)
            except RuntimeError as trouble:
                self._give_up(str(trouble).splitlines()[0])
        if shape in self.recorded:
            self.on_device = True
            return self._replay(batch, self.recorded[shape])
        if self.recorded:
            return self._as_usual(batch)
        if not self.usual and self.seen.total() > PATIENCE * max(self.seen.values()):
            self._give_up("batches differ in shape")
        return self._as_usual(batch) if self.usual else self._aside(batch)

    def _give_up(self, why: str) -> None:
        self.usual = True
        self.recorded.clear()
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        self.optimizer.zero_grad(set_to_none=True)
        _free_generator(self.optimizer.param_groups[0]["params"][0].device)
        self.tell(f"No CUDA graph: {why}. Steps run one kernel at a time.")

    def _as_usual(self, batch: Batch) -> Taken:
        """A step without the graph. It knows nothing of spoilt steps, so those under way are waited for."""
        latest = self.flights[(self.count - 1) % len(self.flights)]
        if latest is not None:
            latest.landed()
        return self.step([self.place(batch)])

    def _aside(self, batch: Batch) -> Taken:
        # One stream for all: the allocator keeps separate memory for each.
        self.stream = stream = self.stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            taken = self.step([self.place(batch)])
        torch.cuda.current_stream().wait_stream(stream)
        return taken

    def _record(self, batch: Batch) -> Recording:
        step, batch = self.step, self.place(batch)
        packed = Packed(batch, len(self.flights))
        inputs = batch.filled(packed.parts)
        self.optimizer.zero_grad(set_to_none=True)
        if self.slots is None or self.spoilt is None:
            self.slots = torch.empty(len(self.flights), 3, dtype=torch.float64, pin_memory=True)
            self.spoilt = torch.zeros((), device=batch.device)
            self.pool = torch.cuda.graph_pool_handle()
        update, table = step.update, None
        if update is not None:
            update.ready()
            table = update.table()
        graph = torch.cuda.CUDAGraph()
        # One memory for all of them: a replay leaves nothing behind that the next one would need.
        with torch.cuda.graph(graph, pool=self.pool):
            loss = step.backward(inputs)
            found = self._usual_update(loss) if update is None or table is None else update(loss, table)
        if update is not None and table is not None:
            update.write(table)
        return Recording(graph, packed, found, table)

    def _usual_update(self, loss: Tensor) -> Tensor:
        """Clipping and the optimiser's own step, for those that have no kernels here."""
        assert self.spoilt is not None
        norm = torch.nn.utils.clip_grad_norm_(self.step.parameters, self.step.limit)
        found = torch.stack([loss.double(), norm.double(), self.spoilt])
        self.spoilt.clamp_(min=(~found.isfinite().all()).float())
        found[2] = self.spoilt
        # The optimiser leaves weights and memory alone where this is 1, as it does for loss scaling.
        self.optimizer.found_inf = self.spoilt  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        return found

    def _replay(self, batch: Batch, recording: Recording) -> Taken | Flight:
        assert self.slots is not None
        recording.inputs.put(batch, self.count)
        recording.graph.replay()
        place = self.count % len(self.flights)
        before = self.flights[place]
        if before is not None:
            before.read()  # its slot is needed
        slot = self.slots[place]
        slot.copy_(recording.found, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        flight = Flight(slot, arrived, partial(self._check, batch.index))
        self.flights[place] = flight
        self.count += 1
        return flight if self.ahead else flight.landed()

    def _check(self, index: tuple[int, ...], loss: float, norm: float, spoilt: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.step._check(loss, norm, [torch.tensor(loss)], [index])
        if spoilt:
            raise NonFinite("a step before this one had a loss or a gradient that is no number")


def _update(optimizer: torch.optim.Optimizer, limit: float) -> Any:
    """The two kernels that end a step, where they fit the optimiser and Triton is there."""
    if not HAS_TRITON:
        return None
    from regard.training.cuda_graph import fused_update

    return fused_update.Update(optimizer, limit) if fused_update.fits(optimizer) else None


def layout(batch: Batch) -> tuple[Any, ...]:
    """What must be the same in every batch of a graph."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.tensors().items())


def _free_generator(device: torch.device) -> None:
    """A recording that broke off leaves torch's generator believing that it goes on; a copy of its state does not."""
    if device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())
