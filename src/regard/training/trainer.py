"""The loop: steps, log lines, validations, checkpoints, until the steps are done or someone says stop.

A checkpoint speaks of the moment between two steps with nothing in flight. A run that is stopped inside a step is saved
as of the moment before it, and the step's batches come again.

On a GPU steps are sent ahead, and the loop reads what they found when it is there. What needs to know (a validation, a
checkpoint, the end) waits for all of them first. If one turns out not to have been taken, neither were those behind
it, and the run goes back to the moment before it.
"""

from __future__ import annotations

import copy
import dataclasses
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from torch import Tensor

from regard.errors import BadValue
from regard.tasks.problem import Batch
from regard.training import checkpoints, heartbeat, optim
from regard.training.assembly import Parts
from regard.training.budget import of, positions
from regard.training.checkpoints import Checkpoint
from regard.training.company import Company
from regard.training.config import Config
from regard.training.evaluation import evaluate
from regard.training.folder import RunFolder
from regard.training.graph import AHEAD, Flight
from regard.training.hardware import Hardware, any_shape
from regard.training.learner import Learner
from regard.training.metrics import Metrics, Record, plain
from regard.training.order import Order, generator
from regard.training.position import Boundary, Position, seed_everything
from regard.training.progress import Display, TensorBoard
from regard.training.random_state import RandomState
from regard.training.record import settings_of
from regard.training.retention import Keep
from regard.training.signals import Interrupted, Signals
from regard.training.step import NonFinite, Taken

SECONDS_AT_RISK = 300.0  # slow steps: save at least so often, whatever --save-every says


@dataclasses.dataclass
class Sent:
    """A step that is under way, and what to go back to if it turns out not to have been taken."""

    result: Taken | Flight
    boundary: Boundary
    position: Position  # as it was before
    record: Record | None = None  # its line of metrics, where it gets one


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
        self.config, self.run, self.task, self.raw = config, run, parts.task, parts.model
        self.hardware, self.signals, self.tell, self.quiet = hardware, signals, tell, quiet
        assert config.batch_size is not None and config.accumulate is not None
        self.budget, self.company, self.accumulate = of(config), Company(hardware), config.accumulate
        self.keep = Keep.parse(config.keep)
        self.position = Position() if checkpoint is None else Position.read(checkpoint.state["progress"])
        self.saved, self.saved_at = -1 if checkpoint is None else checkpoint.step, self.position.seconds
        self.tokens = 0  # of the step at hand
        self.under_way: deque[Sent] = deque()
        self.latest: Taken | None = None  # what the last step found of which anything is known
        self.examples = self.task.examples("train")
        self.order = Order(self.examples, config.batch_size, config.seed, self.task.length, config.bucket)
        self.validates = len(self.task.examples("validation")) > 0
        self.learner = Learner(config, hardware, self.company, parts, checkpoint, tell)
        if checkpoint is not None:  # the last thing, so that nothing draws after it
            self._draw_on(checkpoint)

    def _draw_on(self, checkpoint: Checkpoint) -> None:
        """Go on with the random generators of a checkpoint; other processes than those that made it begin anew."""
        states = RandomState.unpack_all(checkpoint.random, checkpoint.state.get("random"))
        if len(states) == self.company.size:
            states[self.company.place].restore()
            return
        self.tell(
            f"resume: the number of processes was {len(states)} and is {self.company.size} now. Batches and "
            "what is drawn at random (dropout) are from here on not those of a run that went on as it was."
        )
        anew = generator(self.config.seed, "process", self.company.place, self.position.step)
        seed_everything(anew.initial_seed())

    @contextmanager
    def open(self) -> Iterator[None]:
        """Everything a run writes to, open while it trains."""
        self.metrics = Metrics(self.run.metrics, self.tell) if self.company.leads else None
        self.settings = settings_of(self.run) if self.company.leads and self.run.exists else None
        self.board = None
        if self.config.report_to == "tensorboard" and self.company.leads:
            self.board = TensorBoard(self.run.path / "tensorboard", self.position.step)
        self.display = Display(self.budget, self.position, quiet=self.quiet or not self.company.leads)
        self.stepping, self.began_at = 0.0, self.position.step
        self.raw.train()
        try:
            with any_shape():
                yield
        finally:
            self.display.close()
            if self.board is not None:
                self.board.close()
            if self.metrics is not None:
                self.metrics.close()

    def train(self) -> str:
        """Take steps until there is a reason to stop, and return it: as in `Result.stopped_by`."""
        with self.open():
            if self.position.pending is not None:  # the last process was stopped inside a validation
                self.saved = -1
                self._settle(marked=True)
            if self.keep.whole_training and self.position.step == 0:
                self.save()
            while not (reason := self._reason_to_stop()):
                self.advance()
            self.land()
            self.save()
            return reason

    def _reason_to_stop(self) -> str:
        if received := self.company.heard(self.signals.received):
            return signal.Signals(received).name
        if self.budget.ends(self.position):
            return "steps" if self.budget.kind == "steps" else "budget"
        patience = self.config.patience
        return "patience" if patience is not None and self.position.stale >= patience else ""

    def _hurried(self) -> bool:
        """Whether to stop in the middle of something; several processes only stop together."""
        return self.hardware.alone and bool(self.signals.received)

    def advance(self) -> None:
        """One step and what follows from it. A signal inside the step leaves everything as it was before."""
        started = time.perf_counter()
        self.land(behind=AHEAD - 1)
        boundary = self.learner.boundary()
        position, before = self.position, copy.copy(self.position)
        self.tokens = 0
        rate = optim.rate(self.config.optim, position.step, self.budget.expected_steps(position))
        optim.set_rate(self.learner.optimizer, rate)
        try:
            result = self.learner.step(self._batches())
        except Interrupted:
            self.land()
            self.save(boundary)
            return
        except NonFinite as trouble:
            self.land()  # of several, the first is the one to name
            self._stop_at(boundary, trouble)
        except Exception:  # out of memory, a mistake in a task: not a reason to lose what was learned
            self._rescue(boundary)
            raise
        marks = self.budget.marks(position)
        position.step += 1
        position.batches += self.accumulate * self.company.size
        self.under_way.append(Sent(result, boundary, before))
        passed = time.perf_counter() - started
        self.stepping += passed
        tokens, seconds = self.company.used(self.tokens, passed)
        position.tokens += tokens
        position.seconds += seconds
        marked = self.budget.marks(position) > marks
        if not self._pauses(marked):
            if self._logs():
                self.under_way[-1].record = self._record(rate)
            self.land(behind=AHEAD)
            self._show()
            return
        started = time.perf_counter()
        self.land()
        passed = time.perf_counter() - started
        self.stepping += passed
        position.seconds += passed if self.company.alone else 0.0  # several processes are never ahead
        self._show()
        position.pending = self._found(self._record(rate))
        try:
            self._settle(marked)
        except Exception:
            self._rescue(None)
            raise

    def land(self, behind: int = 0) -> None:
        """Take note of the steps that are done, and wait until at most `behind` are under way."""
        while self.under_way:
            sent = self.under_way[0]
            if len(self.under_way) <= behind and not sent.result.ready:
                return
            self.under_way.popleft()
            try:
                self.latest = sent.result.landed()
            except NonFinite as trouble:
                self.under_way.clear()
                vars(self.position).update(vars(sent.position))
                self._stop_at(sent.boundary, trouble)
            if sent.record is not None:
                self._log(self._found(sent.record))

    def _show(self) -> None:
        if self.latest is not None:
            self.display.step(self.latest.loss, self.speed)

    def _found(self, record: Record) -> Record:
        """A record with what its step, the last of which anything is known, found."""
        assert self.latest is not None
        return {**record, "loss": self.latest.loss, "grad_norm": self.latest.norm}

    def _rescue(self, boundary: Boundary | None) -> None:
        """Save before an error ends the run; if that fails too, the first error is the one to hear of.

        Of several processes the others may be at work still: a save takes all of them, so nothing is saved.
        """
        if not self.company.alone:
            return
        with suppress(Exception):
            self.land()
            self.save(boundary)
            self.tell(f"Saved at step {self.position.step} in {self.run.path}.")

    def _batches(self) -> Iterator[Batch]:
        """The batches of the next step; stops between two of them when a signal came."""
        for number in range(self.accumulate):
            if number and self._hurried():
                raise Interrupted
            yield self.collated(self.position.batches + number * self.company.size + self.company.place)

    def batch(self, place: int) -> Batch:
        """The batch at a place in the data, where the model is."""
        return self.hardware.place(self.collated(place))

    def collated(self, place: int) -> Batch:
        """The batch at a place in the data, a function of the seed and the place alone; its tokens are counted."""
        heartbeat.beat()
        chosen = self.order[place]
        batch = self.task.batch(self.examples, chosen, generator(self.config.seed, "batch", place))
        self.tokens += positions(batch, self.task.problem)  # here, where counting need not wait for a device
        return dataclasses.replace(batch, index=tuple(chosen))

    def _record(self, rate: float) -> Record:
        return {
            "step": self.position.step,
            "loss": None,  # known when the step is done
            "lr": rate,
            "grad_norm": None,
            "epoch": self.order.epoch(self.position.batches - 1),
            "tokens": self.position.tokens,
            "seconds": round(self.position.seconds, 3),
            "steps_per_second": round(self.speed, 3),
        }

    @property
    def speed(self) -> float:
        """Steps per second of this process, validations and checkpoints not counted."""
        return (self.position.step - self.began_at) / self.stepping if self.stepping else 0.0

    def _logs(self) -> bool:
        assert self.config.log_every
        step = self.position.step
        return step == 1 or step % self.config.log_every == 0 or self.budget.ends(self.position)

    def _saves(self, marked: bool) -> bool:
        assert self.config.save_every
        late = self.position.seconds - self.saved_at > SECONDS_AT_RISK  # by the clock that all agree on
        step = self.position.step
        return marked or late or step % self.config.save_every == 0 or self.keep.due(step)

    def _validates(self, marked: bool) -> bool:
        assert self.config.eval_every
        last = self.budget.ends(self.position)
        return self.validates and (marked or last or self.position.step % self.config.eval_every == 0)

    def _pauses(self, marked: bool) -> bool:
        """Whether something is to be done with nothing in flight."""
        return self._saves(marked) or self._validates(marked) or self.budget.ends(self.position)

    def _settle(self, marked: bool) -> None:
        """Finish what the last step leaves to do: validation, log line, checkpoint. A signal may cut it short.

        `marked`: validation and checkpoint are due whatever the number of the step.
        """
        record = self.position.pending
        assert record is not None
        better, due = False, self._validates(marked)
        if due:
            found = self._validate()
            if found is None:
                return
            deciding = self._deciding(found)
            better = self.position.validated(deciding, self.task.higher_is_better, found.get("loss"))
            self.position.metrics = plain(found)
            record["validation"] = plain(found)
            self.display.validated(self.task.metric, found[self.task.metric], better)
        self.position.pending = None
        if due or self._logs():
            self._log(record)
        if better or self._saves(marked):
            self.save()

    def _log(self, record: Record) -> None:
        if self.metrics is not None:
            self.metrics.append(record)
            if self.board is not None:
                self.board.write(record)

    def _validate(self) -> dict[str, float] | None:
        with self.learner.usable() as model:
            return evaluate(
                self.task, model, batch_size=self.config.batch_size or 1, limit=self.config.eval_limit,
                seed=self.config.seed, place=self.hardware.place, stop=self._hurried,
                surrounding=self.hardware.accelerator.autocast, share=(self.company.place, self.company.size),
                gather=self.company.gather,
            )  # fmt: skip

    def _deciding(self, found: dict[str, float]) -> float:
        if self.task.metric not in found:
            raise BadValue(
                f"task: {self.task.name} is decided by {self.task.metric!r}, but its validation measured only "
                f"{', '.join(found) or 'nothing'}."
            )
        return found[self.task.metric]

    def _stop_at(self, boundary: Boundary, trouble: NonFinite) -> NoReturn:
        number = self.position.step + 1
        self.save(boundary)
        raise NonFinite(
            f"step {number}: {trouble}. Stopped before the update: the weights are those of step {number - 1}, saved "
            f"in {self.run.checkpoints / checkpoints.name_of(number - 1)}. Look at these examples, or try a lower "
            f"--optim.lr or a longer --optim.warmup."
        ) from None

    def save(self, boundary: Boundary | None = None) -> None:
        """Write a checkpoint of the moment after the last whole step, unless it is there already.

        All processes call it, with their random states and their parts of the weights; the first one writes.
        """
        position = self.position
        if self.saved == position.step:
            return
        weights, memory = self.learner.tensors(boundary)
        random = self.company.gather(RandomState.now() if boundary is None else boundary.random)
        if self.metrics is not None:
            self._write(weights, memory, random)
        self.saved, self.saved_at = position.step, position.seconds

    def _write(
        self, weights: dict[str, Tensor], memory: dict[str, Tensor], random: list[RandomState]
    ) -> None:
        assert self.metrics is not None
        position = self.position
        tensors, numbers = RandomState.pack_all(random)
        scaler = self.hardware.accelerator.scaler
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(position),
            "random": numbers,
            "scaler": None if scaler is None else scaler.state_dict(),
            "task": self.task.state(),
            "metric": self.task.metric,
            "settings": self.settings,
        }
        last = checkpoints.name_of(self.saved) if self.saved >= 0 else ""
        self.run.check_here(last)
        self.metrics.sync()
        state["metrics"] = self.metrics.seal()
        name = checkpoints.name_of(position.step)
        checkpoints.save(self.run.checkpoints, Checkpoint(name, weights, memory, tensors, state))
        best = None if position.best_step is None else checkpoints.name_of(position.best_step)
        checkpoints.keep(self.run.checkpoints, name, best, self.keep)
        self.run.check_here(name)
