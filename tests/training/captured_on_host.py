"""Captured steps without a GPU: the same loop, queues, slots and host buffers, with graphs that compute on the CPU.

A replay reads its batch, its learning rate and its seed from the packed memory and writes its result there, as a real
one does. Its result is ready a few launches later, and a slot that is read too early or overwritten too soon shows.
"""

import math

import torch

from regard_workbench.training import engines
from regard_workbench.training.engines.cuda_graph import engine, graphed_step
from regard_workbench.training.engines.cuda_graph.graphed_step import GraphedStep
from regard_workbench.training.engines.cuda_graph.packed_batch import RATE, SEED, PackedBatch
from regard_workbench.training.engines.cuda_graph.step_group import CapturedStep, StepGroup

LATE = 3  # launches until a result is ready, unless it is waited for


class Device:
    """What is launched, in order; all of it runs when an event is waited for, or `LATE` launches later."""

    def __init__(self):
        self.queue = []
        self.launches = 0

    def launch(self, work):
        self.launches += 1
        self.queue.append((self.launches, work))
        self.run(self.launches - LATE)

    def run(self, until):
        while self.queue and self.queue[0][0] <= until:
            self.queue.pop(0)[1]()


class Event:
    """An event of the device."""

    def __init__(self, device):
        self.device, self.at = device, 0

    def record(self, stream=None):
        self.at = self.device.launches

    def query(self):
        return not self.device.queue or self.device.queue[0][0] > self.at

    def synchronize(self):
        self.device.run(self.at)


class LateTensor:
    """Memory of the device: copies into it and out of it run in the order of launches."""

    def __init__(self, tensor, device):
        self.tensor, self.device = tensor, device

    def copy_(self, source, non_blocking=False):
        self.device.launch(lambda: self.tensor.copy_(source))


class LateSlot:
    """Pinned memory of the host that a result is copied to."""

    def __init__(self, tensor, device):
        self.tensor, self.device = tensor, device

    def __getitem__(self, place):
        return LateSlot(self.tensor[place], self.device)

    def copy_(self, source, non_blocking=False):
        self.device.launch(lambda: self.tensor.copy_(source))


class Graph:
    """A graph: what to do at a replay."""

    def __init__(self, device, work):
        self.device, self.work = device, work

    def replay(self):
        self.device.launch(self.work)


class PlainUpdate:
    """Clipping and the optimiser's step, skipped from the first non-finite loss or gradient on."""

    eager_table = None

    def __init__(self, step, optimizer):
        self.step, self.optimizer, self.skipping = step, optimizer, False

    def ready(self):
        pass

    def refresh(self):
        pass

    def write(self, table):
        pass

    def __call__(self, loss, table, rate=None, found=None):
        norm = torch.nn.utils.clip_grad_norm_(self.step.parameters, self.step.limit)
        finite = math.isfinite(float(loss)) and math.isfinite(float(norm))
        self.skipping = self.skipping or not finite
        if rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = float(rate)
        if not self.skipping:
            self.optimizer.step()
        result = torch.tensor([float(loss), float(norm), float(self.skipping)], dtype=torch.float64)
        return result if found is None else found.copy_(result)

    def take(self, batch, rate, seed, found):
        """A whole step, as a graph has it."""
        self.optimizer.zero_grad(set_to_none=True)
        self(self.step.backward(batch, seed), None, rate, found)


class HostGroup(StepGroup):
    """Several steps in one graph."""

    def _captured(self, optimizer, batch, pool):
        self.device, update = self.single.graph.device, self.step.update
        inputs = []
        for parts in self._parts(self.single.inputs, self.memory):
            rate, seed = parts.pop(RATE), parts.pop(SEED)
            inputs.append((batch.filled(parts), rate, seed))
        self.memory = LateTensor(self.memory, self.device)
        for ring in self.rings:
            ring.slots = LateSlot(ring.slots, self.device)

        def work():
            for (given, rate, seed), found in zip(inputs, self.results, strict=True):
                update.take(given, rate, seed, found)

        return Graph(self.device, work)

    def _event(self):
        event = Event(self.device)
        event.record()
        return event


class HostGraphedStep(GraphedStep):
    """`GraphedStep` on the CPU; `ways` says how each step was taken."""

    def __init__(self, step, optimizer, max_pending, group=1):
        super().__init__(step, optimizer, print, max_pending)
        self.device, self.steps_per_graph, self.eager_only = Device(), group, not group
        step.update = PlainUpdate(step, optimizer)
        self.ways = []

    def _capture(self, batch):
        packed, result = PackedBatch(batch, len(self.pending)), torch.zeros(3, dtype=torch.float64)
        given, update = batch.filled(packed.parts), self.step.update
        packed.memory = LateTensor(packed.memory, self.device)
        if not self.slots:
            slots = torch.zeros(len(self.pending), 3, dtype=torch.float64)
            self.slots = [LateSlot(slot, self.device) for slot in slots]
            self.values, self.events = list(slots.numpy()), [Event(self.device) for _ in slots]
        return CapturedStep(
            Graph(self.device, lambda: update.take(given, packed.rate, packed.seed, result)), packed, result
        )

    def _warm_up(self, batch):
        return self._eager(batch)

    def _offset(self):
        return self.device.launches  # each step draws one number

    def _eager(self, batch):
        self.ways.append("eager")
        return super()._eager(batch)

    def _replay(self, batch, captured):
        self.ways.append("single")
        return super()._replay(batch, captured)

    def _group(self, shape, batch):
        found = super()._group(shape, batch)
        if found is not None:
            self.ways.append("group")
        return found


def use(monkeypatch, group):
    """Let runs take captured steps on the CPU, `group` in a graph (0: none); returns the list of their steps."""
    made = []

    def graphed(step, optimizer, tell, max_pending, to_device):
        made.append(HostGraphedStep(step, optimizer, max_pending, group))
        return made[-1]

    monkeypatch.setattr(engines, "uncaptured", lambda config, hardware: "")
    monkeypatch.setattr(engine.CapturedEngine, "captured", False)  # an optimiser for graphs needs a GPU
    monkeypatch.setattr(engine, "GraphedStep", graphed)
    monkeypatch.setattr(graphed_step, "StepGroup", HostGroup)
    monkeypatch.setattr(engine, "STEPS_PER_GRAPH", max(1, group))
    return made
