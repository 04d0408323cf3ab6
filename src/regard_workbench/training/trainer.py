"""The training loop: steps, log lines, validations and checkpoints, until the budget is used up or a signal arrives.

A checkpoint describes the state between two steps, with no step pending. A run that is stopped inside a step is saved
as it was before that step, and the batches of the step are repeated on resume.

On a GPU, steps are launched without waiting for their results, and the loop reads each result once it is available.
Validations, checkpoints and the end of the run wait for all pending steps. If a pending step turns out to be
non-finite, neither it nor the steps after it changed the weights, and the loop restores its state before that step.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from regard.errors import BadValue
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.training import optim
from regard_workbench.training.build import Parts
from regard_workbench.training.config import Config, non_defaults
from regard_workbench.training.config.budget import budget_of
from regard_workbench.training.config.retention import Keep
from regard_workbench.training.cuda_graph.graphed_step import MAX_PENDING
from regard_workbench.training.cuda_graph.pending_step import PendingStep
from regard_workbench.training.data import StepBatches, TrainingData, generator
from regard_workbench.training.distributed.processes import Processes
from regard_workbench.training.evaluation import completions, evaluate
from regard_workbench.training.hardware import Hardware, any_shape
from regard_workbench.training.learner import Learner
from regard_workbench.training.pace import Pace
from regard_workbench.training.progress import Display
from regard_workbench.training.reporting import Reports
from regard_workbench.training.run_folder import checkpoints
from regard_workbench.training.run_folder.checkpoints import Checkpoint
from regard_workbench.training.run_folder.folder import RunFolder
from regard_workbench.training.run_folder.metrics_file import Record, plain
from regard_workbench.training.run_folder.recorder import RunRecorder
from regard_workbench.training.signals import Interrupted, Signals
from regard_workbench.training.state import Position, RandomState, Snapshot, seed_everything
from regard_workbench.training.step import NonFinite, StepResult

COMPLETED = 100  # texts that the last validation, and a comparison, complete at most
SECONDS_AT_RISK = 300.0  # with slow steps, save at least this often, whatever --save-every says
SECONDS_UNREAD = 0.002  # results of pending steps are looked for this often; a look at each takes the time of a launch


@dataclasses.dataclass(slots=True)
class LaunchedStep:
    """A step whose result was not read yet, and the state to restore if it turns out to be non-finite."""

    result: StepResult | PendingStep
    snapshot: Snapshot
    position: Position  # before the step
    record: Record | None = None  # its line of metrics, if it is logged


class Trainer:
    """One run in one process."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        parts: Parts,
        hardware: Hardware,
        signals: Signals,
        checkpoint: Checkpoint | None = None,
        tell: Callable[[str], None] = lambda text: None,
        quiet: bool = False,
    ) -> None:
        self.config, self.run, self.task, self.model = config, run, parts.task, parts.model
        self.hardware, self.signals, self.tell, self.quiet = hardware, signals, tell, quiet
        assert config.accumulate is not None
        self.budget, self.processes, self.accumulate = (
            budget_of(config),
            Processes(hardware, config.context_parallel),
            config.accumulate,
        )
        self.keep = Keep.parse(config.keep)
        self.position = Position() if checkpoint is None else Position.read(checkpoint.state["progress"])
        self.saved_step = -1 if checkpoint is None else checkpoint.step
        self.saved_seconds = self.position.seconds
        self.launched: deque[LaunchedStep] = deque()
        self.last_result: StepResult | None = None
        self.looked = 0.0  # when results were last looked for
        self.data = TrainingData(self.task, self.model, config, self.processes.readers)
        self.has_validation = len(self.task.examples("validation")) > 0
        self.learner = Learner(config, hardware, self.processes, parts, checkpoint, tell)
        if checkpoint is not None:  # last, so that nothing draws random numbers after it
            self._restore_random(checkpoint)

    def _restore_random(self, checkpoint: Checkpoint) -> None:
        """Restore the random generators; with another number of processes, seed them anew from the step."""
        states = RandomState.unpack_all(checkpoint.random, checkpoint.state.get("random"))
        if len(states) == self.processes.count:
            states[self.processes.rank].restore()
            return
        self.tell(
            f"resume: the number of processes was {len(states)} and is {self.processes.count} now. From here on, "
            "batches and random draws (dropout) differ from those of an uninterrupted run."
        )
        seed = generator(self.config.seed, "process", self.processes.rank, self.position.step).initial_seed()
        seed_everything(seed)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Open everything a run writes to while it trains."""
        self.recorder: RunRecorder | None = None
        self.reports: Reports | None = None
        if self.processes.is_main:
            self.recorder = RunRecorder(self.run, self.task, self.keep, self.tell)
            if self.saved_step >= 0:  # a process that was killed after it saved left older checkpoints
                self.recorder.prune(self.position)
            self.reports = Reports(
                self.config.report_to, self.run.path, non_defaults(self.config), self.position.step, self.tell
            )
        self.display = Display(self.budget, self.position, quiet=self.quiet or not self.processes.is_main)
        self.pace = Pace()
        self.model.train()
        try:
            with any_shape():
                if self.learner.replicated:
                    self.learner.lay_out_buckets(self.data.separate_batch(self.processes.reader))
                yield
        finally:
            self.data.close()
            self.display.close()
            if self.reports is not None:
                self.reports.close()
            if self.recorder is not None:
                self.recorder.close()

    def train(self) -> str:
        """Train until there is a reason to stop, and return it, as in `Result.stopped_by`."""
        with self.open():
            if self.position.pending is not None:  # the last process was stopped inside a validation
                self.saved_step = -1
                self._finish_step(tenth=True)
            if self.keep.whole_training and self.position.step == 0:
                self.save()
            while not (reason := self._reason_to_stop()):
                self.advance()
            self.synchronize()
            self.save()
            return reason

    def _reason_to_stop(self) -> str:
        if received := self.processes.any_signal(self.signals.received):
            return signal.Signals(received).name
        if self.budget.ends(self.position):
            return "steps" if self.budget.kind == "steps" else "budget"
        patience = self.config.patience
        return "patience" if patience is not None and self.position.stale >= patience else ""

    def _interrupted(self) -> bool:
        """Whether to stop within a step or a validation; several processes stop only between steps, together."""
        return self.hardware.single_process and bool(self.signals.received)

    def advance(self) -> None:
        """Take one step, then log, validate and save where due. A signal inside the step undoes it."""
        started = time.perf_counter()
        if len(self.launched) >= MAX_PENDING:
            self.synchronize(pending=MAX_PENDING - 1)
        snapshot = self.learner.snapshot()
        position, before = self.position, self.position.copy()
        rate = optim.rate(self.config.optim, position.step, self.budget.expected_steps(position))
        self.learner.set_rates(rate, position.step + 1)
        batches = self._next_batches()
        try:
            result = self.learner.step(batches)
        except Interrupted:
            self.synchronize()
            self.save(snapshot)
            return
        except NonFinite as error:
            self.synchronize()  # if an earlier step is non-finite too, name that one
            self._stop_non_finite(snapshot, error)
        except Exception:  # out of memory, a mistake in a task: keep what was learned
            self._save_before_error(snapshot)
            raise
        tenths = self.budget.tenths(position)
        position.step += 1
        position.batches += self.accumulate * self.processes.readers
        self.launched.append(LaunchedStep(result, snapshot, before))
        now = time.perf_counter()
        passed = now - started
        self.pace.add_step(passed)
        tokens, seconds = self.processes.total_used(batches.tokens, passed)
        position.tokens += tokens
        position.seconds += seconds
        tenth = self.budget.tenths(position) > tenths
        if not self._must_synchronize(tenth):
            if self._log_due():
                self.launched[-1].record = self._record(rate)
            if isinstance(result, StepResult) or now - self.looked > SECONDS_UNREAD:
                self.looked = now
                self.synchronize(pending=MAX_PENDING)
                self._show()
            return
        started = time.perf_counter()
        self.synchronize()
        passed = time.perf_counter() - started
        self.pace.add_wait(passed)
        position.seconds += passed if self.processes.single else 0.0  # several processes have no pending steps
        self._show()
        position.pending = self._with_result(self._record(rate))
        try:
            self._finish_step(tenth)
        except Exception:
            self._save_before_error(None)
            raise

    def synchronize(self, pending: int = 0) -> None:
        """Read the results that are available, and wait until at most `pending` steps are pending."""
        while self.launched:
            oldest = self.launched[0]
            if len(self.launched) <= pending and not oldest.result.ready:
                return
            self.launched.popleft()
            try:
                self.last_result = oldest.result.result()
            except NonFinite as error:
                self.launched.clear()
                vars(self.position).update(vars(oldest.position))
                self._stop_non_finite(oldest.snapshot, error)
            if oldest.record is not None:
                self._log(self._with_result(oldest.record))

    def _next_batches(self) -> StepBatches:
        """The batches of the next step; each reader takes every n-th."""
        count, first = self.processes.readers, self.position.batches + self.processes.reader
        indices = range(first, first + self.accumulate * count, count)
        return StepBatches(self.data, indices, self._interrupted)

    def batch(self, index: int) -> Batch:
        """Training batch `index`, on the device."""
        return self.hardware.to_device(self.data.batch(index))

    def _finish_step(self, tenth: bool) -> None:
        """Validate, log and save after the last step, where due. A signal may cut this short.

        `tenth`: the step used up another tenth of a budget in tokens or seconds, so validation and checkpoint are due.
        """
        record = self.position.pending
        assert record is not None
        best, validation_due = False, self._validation_due(tenth)
        if validation_due:
            found = self._validate()
            if found is None:
                return
            deciding = self._deciding_metric(found)
            best = self.position.validated(deciding, self.task.metric.higher_is_better, found.get("loss"))
            self.position.metrics = plain(found)
            record["validation"] = plain(found)
            self.display.validated(self.task.metric.name, deciding, best)
        self.position.pending = None
        if validation_due or self._log_due():
            self._log(record)
        if best or self._save_due(tenth):
            self.save()

    def _validate(self) -> dict[str, float] | None:
        """The metrics of the validation; the last one also completes some texts. None after a signal."""
        size, limit = self.config.batch_size or 1, self.config.eval_limit
        autocast = self.hardware.accelerator.autocast
        with self.learner.gathered() as model:
            found = evaluate(
                self.task,
                model,
                batch_size=size,
                limit=limit,
                seed=self.config.seed,
                to_device=self.hardware.to_device,
                stop=self._interrupted,
                autocast=autocast,
                share=(self.processes.rank, self.processes.count),
                gather=self.processes.gather,
            )
            # Every process completes the same texts, so that all have the same numbers; with the positions of a text on
            # several processes, none could.
            if found is not None and self.budget.ends(self.position) and self.config.context_parallel == 1:
                found |= completions(
                    self.task,
                    model,
                    "validation",
                    batch_size=size,
                    most=min(limit or COMPLETED, COMPLETED),
                    device=self.hardware.device,
                    autocast=autocast,
                )
        return found

    def _deciding_metric(self, found: dict[str, float]) -> float:
        name = self.task.metric.name
        if name not in found:
            raise BadValue(
                f"task: {self.task.name} is decided by {name!r}, but its validation measured only "
                f"{', '.join(found) or 'nothing'}."
            )
        return found[name]

    def _log_due(self) -> bool:
        assert self.config.log_every
        step = self.position.step
        return step == 1 or step % self.config.log_every == 0 or self.budget.ends(self.position)

    def _save_due(self, tenth: bool) -> bool:
        assert self.config.save_every
        late = self.position.seconds - self.saved_seconds > SECONDS_AT_RISK  # by the clock all processes agree on
        step = self.position.step
        return tenth or late or step % self.config.save_every == 0 or self.keep.due(step)

    def _validation_due(self, tenth: bool) -> bool:
        assert self.config.eval_every
        last = self.budget.ends(self.position)
        return self.has_validation and (tenth or last or self.position.step % self.config.eval_every == 0)

    def _must_synchronize(self, tenth: bool) -> bool:
        """Whether something is due that no step may be pending for."""
        return self._save_due(tenth) or self._validation_due(tenth) or self.budget.ends(self.position)

    def _show(self) -> None:
        if self.last_result is not None:
            self.display.step(self.last_result.loss, self.speed)

    def _record(self, rate: float) -> Record:
        return {
            "step": self.position.step,
            "loss": None,  # unknown until the result is read
            "lr": rate,
            "grad_norm": None,
            "epoch": self.data.epoch(self.position.batches - 1),
            "tokens": self.position.tokens,
            "seconds": round(self.position.seconds, 3),
            "steps_per_second": round(self.speed, 3),
        }

    def _with_result(self, record: Record) -> Record:
        """The record of the last step whose result was read, with loss and gradient norm filled in."""
        assert self.last_result is not None
        return {**record, "loss": self.last_result.loss, "grad_norm": self.last_result.norm}

    def _log(self, record: Record) -> None:
        if self.recorder is not None:
            self.recorder.log(record)
            if self.reports is not None:
                self.reports.write(record)

    @property
    def speed(self) -> float:
        """Steps per second of this process, without validations, checkpoints and the first steps, which compile."""
        return self.pace.steps_per_second

    def save(self, snapshot: Snapshot | None = None) -> None:
        """Write a checkpoint of the state after the last complete step, unless it was written already.

        All processes call this, with their random states and their shards of the weights; the main process writes.
        """
        position = self.position
        if self.saved_step == position.step:
            return
        weights, optimizer = self.learner.state(snapshot)
        random = self.processes.gather(
            RandomState.now(self.hardware.device.type) if snapshot is None else snapshot.random
        )
        if self.recorder is not None:
            scaler = self.hardware.accelerator.scaler
            self.recorder.save(position, weights, optimizer, random, scaler, self.saved_step)
        self.saved_step, self.saved_seconds = position.step, position.seconds

    def _save_before_error(self, snapshot: Snapshot | None) -> None:
        """Save before an error ends the run; if saving fails too, the first error is the one to raise.

        Several processes save nothing: a save is a collective, and the others may not have failed.
        """
        if not self.processes.single:
            return
        with suppress(Exception):
            self.synchronize()
            self.save(snapshot)
            self.tell(f"Saved at step {self.position.step} in {self.run.path}.")

    def _stop_non_finite(self, snapshot: Snapshot, error: NonFinite) -> NoReturn:
        number = self.position.step + 1
        self.save(snapshot)
        raise NonFinite(
            f"step {number}: {error}. Stopped before the update: the weights are those of step {number - 1}, saved "
            f"in {self.run.checkpoints / checkpoints.name_of(number - 1)}. Look at these examples, or try a lower "
            f"--optim.lr or a longer --optim.warmup."
        ) from None
