"""Word alignments in tasks: links read off attention, yardsticks, and which links are not one to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from regard_workbench.tasks.formats.gold import Pairs
from regard_workbench.tasks.measures.metrics import SHARE, Answering, Counts, Metric, State
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.task import Task

NOT_ONE_TO_ONE = ("null", "one to many", "reordered")


def attended_links(weights: Tensor) -> Pairs:
    """The source word to which each target word attends most, from weights (t,n) of target × source words.

    A target word has no link where nothing is attended to, or where the sink takes more weight than any word: then the
    weights sum to less than 1, and what is missing is the sink's.
    """
    if not weights.numel():
        return set()
    largest, best = weights.max(1)
    missing = 1 - weights.sum(1)
    linked = (largest > 0) & (largest >= missing)
    return {(int(best[row]), row) for row in linked.nonzero().flatten().tolist()}


def diagonal_links(sources: int, targets: int) -> Pairs:
    """Each target word with the source word that stands at the same share of its sentence."""
    return {(int((target + 0.5) * sources / targets), target) for target in range(targets)} if sources else set()


def map_of(weights: Mapping[str, Tensor], batch: Batch, example: int, rows: str = "written") -> dict[str, Tensor]:
    """The weights (t,n) of one example by layer, mean over heads, without padding and without the end token.

    `rows`: "written": the row that writes a word; "read": the next one, which has just read it.
    """
    targets, keep = batch.target_keep, batch.keep
    assert batch.targets is not None
    length = batch.targets.shape[1]
    lengths = [
        size if kept is None else int(kept[example].sum())
        for kept, size in ((targets, length), (keep, batch.inputs.shape[1]))
    ]
    first = int(rows == "read")
    real = slice(None) if keep is None else keep[example]
    return {
        layer: weight_map[example].mean(0)[first : first + lengths[0] - 1][:, real].float().cpu()
        for layer, weight_map in weights.items()
    }


def mean_map(maps: Mapping[str, Tensor]) -> Tensor:
    """The mean over all layers, (t,n)."""
    return torch.stack(list(maps.values())).mean(0)


def not_one_to_one(links: Pairs, targets: int) -> dict[str, float]:
    """How many target words have no link, share a source word, or have a link that crosses another; and all words."""
    counts = {kind: float(len(words)) for kind, words in unusual_words(links, targets).items()}
    return {**counts, "words": float(targets)}


def unusual_words(links: Pairs, targets: int) -> dict[str, list[int]]:
    """The target words that have no link, that share a source word, or that have a link that crosses another."""
    linked = {target for _, target in links}
    by_source: dict[int, set[int]] = {}
    for source, target in links:
        by_source.setdefault(source, set()).add(target)
    shared = {target for aligned in by_source.values() if len(aligned) > 1 for target in aligned}
    crossing = {
        target
        for source, target in links
        if any((source - other_source) * (target - place) < 0 for other_source, place in links)
    }
    groups = ({*range(targets)} - linked, shared, crossing)
    return dict(zip(NOT_ONE_TO_ONE, map(sorted, groups), strict=True))


def shape_metrics(shapes: Mapping[str, Mapping[str, float]]) -> list[tuple[Metric, State]]:
    """The share of target words that are not aligned one to one, of each kind, from sums of `not_one_to_one`."""

    def share(kind: str) -> Callable[[Mapping[str, float]], float]:
        return lambda counts: counts[kind] / counts["words"] if counts["words"] else 0.0

    return [
        (
            Counts(f"{name}{kind}".replace(" ", "_"), unit=SHARE, over="target words", total="words", made=share(kind)),
            dict(counts),
        )
        for name, counts in shapes.items()
        for kind in NOT_ONE_TO_ONE
    ]


def added(total: dict[str, float] | None, more: Mapping[str, float]) -> dict[str, float]:
    """Counts and more of them, by name."""
    return dict(more) if total is None else {name: total[name] + number for name, number in more.items()}


def measured_shapes(
    task: Task, model: Answering, split: str, *, batch_size: int, device: torch.device | str, most: int
) -> list[tuple[Metric, State]]:
    """How much of what a model writes its attention does not align one to one; nothing where it has no such weights.

    Measured on the right translations of the first `most` examples: pieces, not words.
    """
    examples = task.examined_examples(split)
    total: dict[str, float] | None = None
    for begin in range(0, min(most, len(examples)), batch_size):
        chosen = range(begin, min(begin + batch_size, most, len(examples)))
        batch = task.collate([examples[index] for index in chosen], torch.Generator()).to(device)
        weights = model.attention_to_source(batch) if batch.targets is not None else {}
        for example in range(batch.size if weights else 0):
            alignment = mean_map(map_of(weights, batch, example))
            total = added(total, not_one_to_one(attended_links(alignment), len(alignment)))
    return [] if total is None else shape_metrics({"": total})
