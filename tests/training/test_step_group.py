"""Steps that are launched together: order, rates, results, and what happens when a result is asked for early."""

import pytest
import torch

from regard_workbench.tasks import Batch
from regard_workbench.training.engines.cuda_graph import graphed_step
from regard_workbench.training.engines.cuda_graph.graphed_step import GraphedStep, layout
from regard_workbench.training.engines.cuda_graph.packed_batch import RATE, SEED, PackedBatch
from regard_workbench.training.engines.cuda_graph.step_group import CapturedStep, StepGroup

COUNT, RINGS = 3, 2


def batch(number):
    return Batch.of(torch.full((2, 5), number), targets=torch.full((2,), 7 * number))


class Event:
    def query(self):
        return True

    def synchronize(self):
        pass


class NoStep:
    update = seed = None


class SingleGraph:
    """In place of the graph of one step: notes what it finds in its memory."""

    def __init__(self, inputs, result, ran):
        self.inputs, self.result, self.ran = inputs, result, ran

    def replay(self):
        inputs = self.inputs
        self.ran.append(("single", int(inputs.parts["inputs"][0, 0]), float(inputs.rate), int(inputs.seed)))
        self.result.copy_(torch.tensor([float(self.inputs.parts["targets"][1]), 1.0, 0.0]))


class Group(StepGroup):
    """Without a GPU: its graph notes the batches of all steps."""

    def _captured(self, optimizer, given, pool):
        self.ran, self.graph_parts = self.single.graph.ran, self._parts(self.single.inputs, self.memory)
        group = self

        class Graph:
            def replay(self):
                for parts, result in zip(group.graph_parts, group.results, strict=True):
                    first = int(parts["inputs"][0, 0])
                    group.ran.append(("group", first, float(parts[RATE]), int(parts[SEED])))
                    result.copy_(torch.tensor([float(parts["targets"][1]), 1.0, 0.0]))

        return Graph()

    def _event(self):
        return Event()


def group():
    packed, result = PackedBatch(batch(0), 1), torch.zeros(3, dtype=torch.float64)
    single = CapturedStep(SingleGraph(packed, result, []), packed, result)
    return Group(NoStep(), None, single, batch(0), COUNT, None, RINGS)


def nothing(*values):
    pass


def test_steps_are_launched_together_in_order_with_their_own_rates_and_seeds():
    steps, far = group(), 2**61
    taken = [steps.add(batch(n), n / 8, nothing, far + n) for n in range(1, 4 * COUNT + 1)]
    assert steps.ran == [("group", n, n / 8, far + n) for n in range(1, 4 * COUNT + 1)] and steps.queued == 0
    assert all(one.ready for one in taken)
    assert [one.result().loss for one in taken] == [7.0 * n for n in range(1, 4 * COUNT + 1)]


def test_a_result_that_is_asked_for_early_launches_what_is_queued():
    steps = group()
    taken = [steps.add(batch(n), 0.5, nothing, 3 * n) for n in range(1, COUNT + 3)]
    assert steps.queued == 2 and not taken[-1].ready and taken[0].ready
    assert taken[-1].result().loss == 7.0 * (COUNT + 2) and steps.queued == 0
    assert [way for way, *_ in steps.ran] == ["group"] * COUNT + ["single"] * 2
    assert [seed for *_, seed in steps.ran] == [3 * n for n in range(1, COUNT + 3)]
    steps.flush()  # nothing is queued
    more = [steps.add(batch(n), 0.25, nothing) for n in range(20, 20 + COUNT)]
    assert [number for _, number, *_ in steps.ran] == [*range(1, COUNT + 3), *range(20, 20 + COUNT)]
    assert [one.result().loss for one in [*taken, *more]] == [7.0 * number for _, number, *_ in steps.ran]


@pytest.fixture
def captured(monkeypatch):
    """A step whose graphs exist already: it notes which batches go to a group, and which are replayed alone."""
    ran = []

    class NotedGroup:
        latest, queued = None, 0

        def __init__(self, step, optimizer, single, given, count, pool, rings):
            ran.append(("made", given.size))

        def add(self, given, rate, check, seed):
            ran.append(("group", given.size))

        def flush(self):
            ran.append(("flush", 0))

    monkeypatch.setattr(graphed_step, "StepGroup", NotedGroup)
    monkeypatch.setattr(GraphedStep, "_replay", lambda self, given, single: ran.append(("single", given.size)))
    step = NoStep()
    step.limit, step.average = 1.0, None
    made = GraphedStep(step, torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), nothing)
    step.update, made.rate, made.steps_per_graph = object(), 0.5, COUNT
    for size in (2, 5):
        made.captured[layout(sized(size))] = None
    made.ran = ran
    return made


def sized(size):
    return Batch.of(torch.zeros(size, 3), targets=torch.zeros(size))


def test_the_last_batch_of_an_epoch_gets_no_group_of_its_own(captured):
    for _ in range(20):
        for size in (*[5] * (2 * COUNT), 2):
            captured([sized(size)])
    assert captured.ran.count(("made", 5)) == 1 and ("made", 2) not in captured.ran
    assert captured.ran.count(("single", 2)) == 20 and ("group", 2) not in captured.ran
    # Before a batch of another shape, what is queued is launched: steps keep their order.
    assert captured.ran[-2:] == [("flush", 0), ("single", 2)]


def test_batches_of_one_shape_that_never_come_in_a_row_are_not_grouped(captured):
    for _ in range(30):
        for size in (5, 2):
            captured([sized(size)])
    assert {what for what, _ in captured.ran} == {"single"}
