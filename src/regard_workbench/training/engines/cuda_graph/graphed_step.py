"""A whole step as one CUDA graph, for GPUs and batches of few different shapes: replaying it takes almost no host time.

The first steps run eagerly on a side stream, as capturing requires. A shape of batches that was seen a few times is
captured, each shape in its own graph, all graphs in one memory pool. Batches of other shapes, such as the last one of
an epoch, run eagerly. If shapes hardly ever repeat, as with texts of any length, nothing is captured. A compiled model
is compiled by the first steps, and its kernels are captured like any others.

The host does not wait for a replay: its result is a `PendingStep`. If the loss or the gradient is non-finite, the
device itself skips this update and every later one, so the weights stay as they were before.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.implementations import HAS_TRITON
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import optim
from regard_workbench.training.engines.cuda_graph.capturable_step import CapturableStep
from regard_workbench.training.engines.cuda_graph.packed_batch import PackedBatch
from regard_workbench.training.engines.cuda_graph.step_group import CapturedStep, StepGroup
from regard_workbench.training.engines.engine import NonFinite, PendingStep, StepResult

WARMUP = 3  # eager steps of a shape before it is captured
MAX_BATCHES_PER_REPEAT = 24  # give up if more batches than this came for each time the commonest shape was seen
MAX_SHAPES = 32  # captured shapes
GROUPS_PENDING = 3  # one that runs, one that waits behind it, and one that is being filled
# Steps of one shape that are launched together while nothing else is due. On a quiet H200 groups of eight gained 11 %
# for `decoder` and 8 % for `static-transformer`, whose losses stay the same to the bit.
STEPS_PER_GRAPH = 8


class GraphedStep:
    """A step that is captured once a shape of batches was seen a few times.

    Batches of other shapes, and all of them where a capture failed, run eagerly.

    `max_pending`: how many steps may be pending; 0 waits for each. `to_device` moves a batch to the device.
    """

    def __init__(
        self,
        step: CapturableStep,
        optimizer: torch.optim.Optimizer,
        tell: Callable[[str], None],
        max_pending: int = 0,
        to_device: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        self.step, self.optimizer, self.tell = step, optimizer, tell
        self.max_pending, self.to_device = max_pending, to_device
        self.eager_only = False
        self.replayed = False  # whether the last step was a replay, which draws no random numbers on the host
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.stream: torch.cuda.Stream | None = None
        self.captured: dict[tuple[Any, ...], CapturedStep] = {}
        self.skipping: Tensor | None = None  # 1 from the first non-finite step on
        self.slots: list[Tensor] = []  # pinned memory for results, used in turn, …
        self.values: list[Any] = []  # … the same as arrays, which are quicker to read, …
        self.events: list[Any] = []  # … and what says that they are there
        self.current: torch.cuda.Stream | None = None  # the stream that steps are launched on
        self.pool: Any = None  # the memory pool of all graphs
        self.pending: list[PendingStep | None] = [None] * max(1, max_pending)
        self.count = 0
        self.drawn = 0  # random numbers of all captured steps so far, as the generator counts them
        self.rate: float | None = None  # of the next step; None: the optimiser's own
        self.steps_per_graph = 1  # above 1, so many steps of a shape are launched together
        self.groups: dict[tuple[Any, ...], StepGroup | None] = {}  # None: capturing several steps failed
        self.last_shape: tuple[Any, ...] | None = None
        self.in_a_row = 0  # batches of that shape
        self.last_captured = False  # whether that shape is captured, …
        self.last_graph: CapturedStep | None = None  # … its graph, …
        self.last_group: StepGroup | None = None  # … that of several steps, …
        self.last_draws = 0  # … and the random numbers that a step draws
        if optimizer.param_groups[0]["params"][0].is_cuda:
            step.update = _fused_update(optimizer, step.limit)

    def __call__(self, batches: Iterable[Batch]) -> StepResult | PendingStep:
        """Take one step."""
        (batch,) = batches
        self.replayed = False
        if self.eager_only:
            return self._eager(batch)
        shape = layout(batch)
        if shape != self.last_shape:
            if self.last_group is not None:
                self.last_group.flush()  # steps keep their order
            self.last_shape, self.in_a_row = shape, 0
            self._look_up(shape)
        self.in_a_row += 1
        if not self.last_captured:
            self.seen[shape] += 1
            if self.seen[shape] > WARMUP and len(self.captured) < MAX_SHAPES:
                try:
                    self.captured[shape] = self._capture(batch)
                except RuntimeError as error:
                    self._give_up(str(error).splitlines()[0])
                self._look_up(shape)
        if self.last_captured:
            self.replayed = True
            if self.steps_per_graph > 1 and (group := self._group(shape, batch)) is not None:
                self.drawn += self.last_draws
                return group.add(batch, self.rate, partial(self._check, batch.index), self.step.seed or 0)
            return self._replay(batch, self.last_graph)  # type: ignore[arg-type]
        if self.captured:
            return self._eager(batch)
        if not self.eager_only and self.seen.total() > MAX_BATCHES_PER_REPEAT * max(self.seen.values()):
            self._give_up("batches differ in shape")
        return self._eager(batch) if self.eager_only else self._warm_up(batch)

    def _look_up(self, shape: tuple[Any, ...]) -> None:
        """Note what there is for a shape: most batches have the shape of the one before, and hashing it takes time."""
        self.last_captured = shape in self.captured
        self.last_graph, self.last_group = self.captured.get(shape), self.groups.get(shape)
        self.last_draws = 0 if self.last_graph is None else self.last_graph.draws or 0

    def _give_up(self, why: str) -> None:
        self.eager_only = True
        for group in self.groups.values():
            if group is not None:
                group.flush()
        self.captured.clear()
        self.groups.clear()
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        self.optimizer.zero_grad(set_to_none=True)
        _reset_generator(self.optimizer.param_groups[0]["params"][0].device)
        self.tell(f"No CUDA graph: {why}. Steps run one kernel at a time.")

    def _eager(self, batch: Batch) -> StepResult:
        """A step without a graph. It does not know whether pending steps were skipped, so it waits for the latest."""
        latest = self.pending[(self.count - 1) % len(self.pending)]
        if latest is not None:
            latest.result()
        for group in self.groups.values():
            if group is not None and group.latest is not None:
                group.latest.result()
        self._fill_rate()
        return self.step([self.to_device(batch)])

    def _fill_rate(self) -> None:
        if self.rate is not None:
            optim.set_rate(self.optimizer, self.rate)

    def _warm_up(self, batch: Batch) -> StepResult:
        """An eager step on the side stream. One stream for all shapes: the allocator reserves memory per stream."""
        self.stream = stream = self.stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._fill_rate()
            result = self.step([self.to_device(batch)])
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self, batch: Batch) -> CapturedStep:
        step, batch = self.step, self.to_device(batch)
        packed = PackedBatch(batch, len(self.pending))
        inputs = batch.filled(packed.parts)
        self.optimizer.zero_grad(set_to_none=True)
        if self.skipping is None:
            slots = torch.empty(len(self.pending), 3, dtype=torch.float64, pin_memory=True)
            self.slots, self.values = list(slots), list(slots.numpy())
            self.events = [torch.cuda.Event() for _ in self.slots]
            self.current = torch.cuda.current_stream()
            self.skipping = torch.zeros((), device=batch.device)
            self.pool = torch.cuda.graph_pool_handle()
        update, gradients = step.update, None
        if update is not None:
            update.ready()
            gradients = update.table()
        graph = torch.cuda.CUDAGraph()
        # One memory pool for all graphs: a replay leaves nothing behind that the next one needs.
        with torch.cuda.graph(graph, pool=self.pool):
            loss = step.backward(inputs, None if step.seed is None else packed.seed)
            if update is None or gradients is None:
                result = self._torch_update(loss)
            else:
                result = update(loss, gradients, None if self.rate is None else packed.rate)
            if step.average is not None:
                step.average.update(skipped=result[2])
        if update is not None and gradients is not None:
            update.write(gradients)
        return CapturedStep(graph, packed, result, gradients)

    def _group(self, shape: tuple[Any, ...], batch: Batch) -> StepGroup | None:
        """Several steps of a shape in one graph, captured once a single one has been replayed a few times.

        A shape that comes alone, as the last batch of an epoch does, would never fill a group.
        """
        if self.last_group is not None or shape in self.groups:
            return self.last_group
        if self.in_a_row < max(2 * WARMUP, self.steps_per_graph):
            return None
        if self.max_pending and GROUPS_PENDING * self.steps_per_graph > self.max_pending:
            return None  # results would be asked for before a group is complete
        if self.rate is None or self.step.update is None or self.step.average is not None or batch.device.type != "cpu":
            return None
        for pending in self.pending:  # the graphs share their memory
            if pending is not None:
                pending.read()
        try:
            group: StepGroup | None = StepGroup(
                self.step,
                self.optimizer,
                self.captured[shape],
                self.to_device(batch),
                self.steps_per_graph,
                self.pool,
                max(2, 2 * self.max_pending // self.steps_per_graph),
            )
        except RuntimeError as error:
            group = None
            _reset_generator(self.optimizer.param_groups[0]["params"][0].device)
            self.tell(f"One step in a CUDA graph, not several: {str(error).splitlines()[0]}.")
        self.groups[shape] = self.last_group = group
        return group

    def _torch_update(self, loss: Tensor) -> Tensor:
        """Clipping and the optimiser's own step, for optimisers without a fused update."""
        assert self.skipping is not None
        norm = torch.nn.utils.clip_grad_norm_(self.step.parameters, self.step.limit)
        result = torch.stack([loss.double(), norm.double(), self.skipping])
        self.skipping.clamp_(min=(~result.isfinite().all()).float())
        result[2] = self.skipping
        # Where `found_inf` is 1, the optimiser changes neither weights nor state, as with loss scaling.
        self.optimizer.found_inf = self.skipping  # type: ignore[attr-defined]
        self.optimizer.step()
        self.optimizer.found_inf = None  # type: ignore[attr-defined]
        return result

    def _replay(self, batch: Batch, captured: CapturedStep) -> StepResult | PendingStep:
        index = self.count % len(self.pending)
        previous = self.pending[index]
        if previous is not None:
            previous.read()  # before its slot, its event and its host buffer are used again
        if self.step.update is None:
            self._fill_rate()
        else:
            self.step.update.refresh()
        captured.inputs.put(batch, self.count, self.rate or 0.0, self.step.seed or 0)
        if captured.draws is None:
            before = self._offset()
            captured.graph.replay()
            captured.draws = self.last_draws = self._offset() - before
        else:
            captured.graph.replay()
        self.drawn += self.last_draws
        self.slots[index].copy_(captured.result, non_blocking=True)
        done = self.events[index]
        done.record(self.current)
        pending = PendingStep(self.values[index], done, partial(self._check, batch.index))
        self.pending[index] = pending
        self.count += 1
        return pending if self.max_pending else pending.result()

    def _offset(self) -> int:
        """How many random numbers the generator of the device has given."""
        return int(torch.cuda.get_rng_state().view(torch.int64)[1])

    def _check(self, index: tuple[int, ...], loss: float, norm: float, skipped: float) -> None:
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self.step._check(loss, norm, [torch.tensor(loss)], [index])
        if skipped:
            raise NonFinite("a step before this one had a non-finite loss or gradient")


def _fused_update(optimizer: torch.optim.Optimizer, limit: float) -> Any:
    """Clipping and AdamW as two kernels, if they support the optimiser and Triton is installed."""
    if not HAS_TRITON:
        return None
    from regard_workbench.training.engines.cuda_graph import fused_update

    return fused_update.FusedUpdate(optimizer, limit) if fused_update.fits(optimizer) else None


def layout(batch: Batch) -> tuple[Any, ...]:
    """What all batches of a graph have in common: names, shapes and dtypes."""
    return tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.tensors().items())


def _reset_generator(device: torch.device) -> None:
    """A failed capture leaves the CUDA generator in capture mode; reset it from a copy."""
    if device.type == "cuda":
        generator = torch.cuda.default_generators[device.index or 0]
        generator.graphsafe_set_state(generator.clone_state())
