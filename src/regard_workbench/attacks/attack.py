"""Attack trained runs on a split: every budget of a sweep, every way to spend it, on the same examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import BadValue, unknown_name
from regard.observation.seen import Seen
from regard_workbench.attacks import places
from regard_workbench.attacks.ball import ball
from regard_workbench.attacks.intervals import share
from regard_workbench.attacks.lexicon import Lexicon, lexicon
from regard_workbench.attacks.movement import movement
from regard_workbench.attacks.pixels import fgsm, pgd, slope
from regard_workbench.attacks.report import AttackedRun, AttackReport, AttackRow, Changed
from regard_workbench.attacks.settings import AttackPlan, AttackSettings, Level, planned
from regard_workbench.attacks.specimen import Specimen, pieces_after, specimen
from regard_workbench.attacks.target import TEXTS, Target, kind_of
from regard_workbench.attacks.words import changed_words, replaceable, substitute
from regard_workbench.tasks.parts.shown import texts
from regard_workbench.tasks.parts.task import SPLITS
from regard_workbench.training.data import generator
from regard_workbench.training.evaluation import Fingerprint, evaluation_mode
from regard_workbench.training.loading import Loaded, load

BATCH_SIZE = 64
KEPT = 3  # texts of each row that were fooled

Progress = Callable[[int, int], None]


def attack_runs(
    runs: Sequence[str | Path],
    settings: AttackSettings,
    split: str = "test",
    *,
    checkpoint: str | None = None,
    data: str | None = None,
    device: str = "auto",
    batch_size: int | None = None,
    limit: int | None = None,
    on_progress: Progress = lambda done, total: None,
) -> AttackReport:
    """Attack each of the runs in the same way.

    `data`: other files than the runs' own. `limit`: only the first examples. `on_progress` is called with the number of
    attacks on an example that are done and their total.
    """
    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    for name, value in (("batch_size", batch_size), ("limit", limit)):
        if value is not None and value < 1:
            raise BadValue(f"{name}: expected at least 1, got {value}.")
    loaded = [load(str(run), checkpoint, device, data) for run in runs]
    kinds = [kind_of(loaded_run.task) for loaded_run in loaded]
    if len(set(kinds)) > 1:
        raise BadValue(f"against: expected runs that read the same, got {' and '.join(kinds)}.")
    plan = planned(settings, kinds[0])
    counts = [_count(loaded_run, split, limit) for loaded_run in loaded]
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        on_progress(done, sum(counts) * len(_ways(plan)))

    attacked: list[AttackedRun] = []
    for loaded_run, count in zip(loaded, counts, strict=True):
        wanted = attacked[0].specimen.number if attacked and attacked[0].specimen else None
        attacker = _Attacker(loaded_run, plan, split, count, batch_size or BATCH_SIZE, wanted, progress)
        with evaluation_mode(loaded_run.model):
            attacked.append(attacker.attacked())
    notes = [] if len({run.data_sha256 for run in attacked}) == 1 else ["the runs read different examples"]
    return AttackReport(plan, attacked, notes)


def _count(loaded: Loaded, split: str, limit: int | None) -> int:
    count = len(loaded.task.examples(split))
    if not count:
        raise BadValue(f"split: {loaded.task.name} has no examples in {split!r} to attack.")
    return count if limit is None else min(limit, count)


def _ways(plan: AttackPlan) -> list[tuple[Level, str | None]]:
    """Each budget, and each way to choose its places."""
    choices: tuple[str | None, ...] = places.CHOICES if plan.method == "attention" else (None,)
    return [(level, choice) for level in plan.levels for choice in choices]


@dataclass
class _Tally:
    """What is known so far of one budget, spent in one way."""

    right: list[bool] = field(default_factory=list)
    moved: dict[str, list[float]] = field(default_factory=dict)
    largest: float = 0.0
    places: list[float] = field(default_factory=list)
    examples: list[Changed] = field(default_factory=list)

    def row(self, level: Level, choice: str | None) -> AttackRow:
        moved = {name: _mean(values) for name, values in self.moved.items() if values}
        accuracy = share(sum(self.right), len(self.right))
        mean = _mean(self.places) if self.places else None
        return AttackRow(level, choice, accuracy, self.right, moved, self.largest, mean, self.examples)


class _Attacker:
    """One run, attacked batch by batch."""

    def __init__(
        self,
        loaded: Loaded,
        plan: AttackPlan,
        split: str,
        count: int,
        batch_size: int,
        wanted: int | None,
        progress: Callable[[int], None],
    ) -> None:
        self.loaded, self.plan, self.split, self.count, self.batch_size = (loaded, plan, split, count, batch_size)
        self.task, self.model = loaded.task, loaded.model
        self.examples = self.task.examples(split)
        self.wanted, self.progress = (wanted, progress)  # the example to show: by default the first that is fooled
        self.tallies = [(level, choice, _Tally()) for level, choice in _ways(plan)]
        self.right: list[bool] = []
        self.specimen: Specimen | None = None
        self.telling = -1  # how much it shows
        self.unseen: set[str] = set()
        self.lexicon: Lexicon | None = None

    def attacked(self) -> AttackedRun:
        """All batches."""
        fingerprint = Fingerprint()
        for number, start in enumerate(range(0, self.count, self.batch_size)):
            chosen = range(start, min(start + self.batch_size, self.count))
            batch = self.task.batch(self.examples, chosen, generator(0, self.split, number))
            if batch.targets is None:
                raise BadValue(f"data: {self.task.name} has examples without a class, which cannot be attacked.")
            fingerprint.add(batch)
            self._batch(Target.of(self.model, batch.to(self.loaded.device)), number, start)
        config = self.loaded.config
        rows = [tally.row(level, choice) for level, choice, tally in self.tallies]
        notes = [f"not seen: {name}" for name in sorted(self.unseen)]
        if not any(self.right):
            notes.append("no example was right before the attack, so none was attacked")
        elif not any(row.moved for row in rows):
            notes.append("no attention was seen, so nothing is said about how far it moved")
        return AttackedRun(
            str(self.loaded.run),
            self.loaded.checkpoint,
            self.loaded.sha256,
            config.task,
            config.model or self.model.name,
            config.attention,
            self.split,
            fingerprint.hexdigest,
            share(sum(self.right), len(self.right)),
            self.right,
            rows,
            notes,
            self.specimen,
        )

    def _batch(self, target: Target, number: int, start: int) -> None:
        if self.plan.kind == TEXTS and self.lexicon is None:
            self.lexicon = lexicon(self.task, target.vectors(), self.split, self.loaded.device)
        clean = target.right(target.inputs)
        self.right += clean.tolist()
        before = places.observed(self.model, target.batch)
        self.unseen |= {str(site_name) for site_name in before.unseen}
        scores = {
            choice: None if choice is None else self._scores(choice, target, before, number)
            for choice in dict.fromkeys(choice for _, choice, _ in self.tallies)
        }
        for level, choice, tally in self.tallies:
            perturbed, largest, used = self._attack(target, level, scores[choice], number)
            fixed = clean.view(-1, *[1] * (perturbed.dim() - 1))
            after = torch.where(fixed, perturbed, target.inputs)  # what is wrong already is left as it is
            predicted = target.predicted(after)
            right = target.compared(predicted)
            tally.right += right.tolist()
            attacked = clean.cpu()
            tally.largest = max([tally.largest, *largest[attacked].tolist()])
            if used is not None:
                tally.places += used[attacked].tolist()
            observation = places.observed(self.model, target.reading(after))
            for name, values in movement(before, observation, target.batch).items():
                tally.moved.setdefault(name, []).extend(values[attacked].tolist())
            fooled = (clean & ~right).nonzero().flatten().tolist()
            if self.plan.kind == TEXTS:
                self._keep_texts(tally, target, after, predicted, fooled, start)
            if tally is self._last:
                self._keep_specimen(target, after, clean, fooled, start)
            self.progress(target.batch.size)

    @property
    def _last(self) -> _Tally:
        """The largest budget, spent in the first way: what is shown."""
        return next(tally for level, _, tally in self.tallies if level == self.tallies[-1][0])

    def _scores(self, choice: str, target: Target, seen: Seen, number: int) -> Tensor:
        """How much each position is worth attacking, (b,n), by one of the choices."""
        if choice == places.RANDOM:
            return torch.rand(target.inputs.shape[:2], generator=generator(self.plan.seed, "places", number))
        if choice == places.GRADIENT and self.plan.kind == TEXTS:
            lengths: Tensor = target.vector_slope(target.inputs).norm(dim=-1)
            return lengths.cpu()
        if choice == places.GRADIENT:
            order = 1 if self.plan.norm == "linf" else 2  # to first order the loss rises by ε times the dual norm
            gains: Tensor = slope(target.losses, target.inputs).norm(p=order, dim=-1)
            return gains.cpu()
        attended = places.attended(seen, target.batch, self.task.problem.inputs)
        if attended is None:
            raise BadValue(
                f"method: {self.model.name} has no attention weights over the positions of its input, so nothing says "
                "where it attends most. Try another method."
            )
        return attended

    def _attack(
        self, target: Target, level: Level, scores: Tensor | None, number: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The inputs after an attack, how large the change of each is, and how many positions it used."""
        if self.plan.kind == TEXTS:
            return self._on_texts(target, level, scores)
        return self._on_pictures(target, level, scores, number)

    def _on_texts(self, target: Target, level: Level, scores: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        assert self.lexicon is not None
        keep, inputs = target.batch.keep, target.inputs
        lengths = [inputs.shape[1]] * len(inputs) if keep is None else keep.sum(1).tolist()
        limit = torch.tensor([level.limit(length) for length in lengths])
        allowed = replaceable(self.lexicon, inputs, keep)
        if scores is not None:
            allowed = places.highest(scores, limit, allowed.cpu()).to(inputs.device)
        after = substitute(target, self.lexicon, allowed, limit, nearest=self.plan.nearest, cosine=self.plan.cosine)
        used = changed_words(inputs, after).sum(1).double().cpu()
        return after, used, used

    def _on_pictures(
        self, target: Target, level: Level, scores: Tensor | None, number: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        plan, inputs, keep, eps = self.plan, target.inputs, target.batch.keep, level.eps
        assert eps is not None
        allowed = torch.ones(inputs.shape[:2], dtype=torch.bool) if keep is None else keep.cpu()
        used = None
        if scores is not None:
            count = torch.full((len(inputs),), plan.place_count(inputs.shape[1]))
            allowed = places.highest(scores, count, allowed)
            used = allowed.sum(1).double()
        pixels = allowed.to(inputs.device)[..., None].expand_as(inputs)
        around = ball(plan.norm, inputs, eps, pixels)
        if plan.method == "fgsm":
            after = fgsm(target.losses, around)
            return after, around.size(after), used
        after = inputs
        for restart in range(plan.restarts):
            begin = None
            if plan.start == "random":
                begin = around.random(generator(plan.seed, "start", number, restart))
            perturbed = pgd(target.losses, around, plan.steps, plan.step_of(eps), begin)
            after = perturbed if restart == 0 else target.stronger(after, perturbed)
        return after, around.size(after), used

    def _keep_texts(
        self, tally: _Tally, target: Target, after: Tensor, predicted: Tensor, fooled: list[int], start: int
    ) -> None:
        """Some of the texts that were fooled, in words."""
        assert self.lexicon is not None and target.batch.targets is not None
        for row in fooled[: KEPT - len(tally.examples)]:
            shown = self.task.show(self.examples[start + row], target.batch)
            replaced = pieces_after(shown.pieces, self.lexicon, target.inputs[row], after[row])
            class_names = (self.task.decode([int(which[row])]) for which in (target.batch.targets, predicted))
            tally.examples.append(Changed(start + row, texts(shown.pieces).words, texts(replaced).words, *class_names))

    def _keep_specimen(self, target: Target, after: Tensor, clean: Tensor, fooled: list[int], start: int) -> None:
        """The example to show: the one that is wanted, else the first that is fooled, else the first that was right."""
        attacked = clean.nonzero().flatten().tolist()
        telling, row = (2, fooled[0]) if fooled else (1, attacked[0]) if attacked else (0, 0)
        if self.wanted is not None:
            telling, row = 0, self.wanted - start
        if telling > self.telling and 0 <= row < target.batch.size:
            example, number = self.examples[start + row], start + row
            self.telling = telling
            self.specimen = specimen(self.task, target, example, number, row, after, self.lexicon)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
