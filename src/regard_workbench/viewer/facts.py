"""Facts about every head: its entropy, its pattern, its cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.errors import RegardError
from regard_workbench.viewer.packets import MapRequest, Packets
from regard_workbench.viewer.page_model import PageModel, finite

DIGITS = 5
MIXED = "mixed"
WITHIN_ONE = ("previous token", "next token", "induction", "duplicate token")  # patterns within one sequence
FEW_HEADS, MOST_GROUPS = 24, 16  # heads from which groups are finer, and the most groups


def facts(packets: Packets, variant: int, call: int) -> dict[str, Any]:
    """The facts of each site's heads, and orders in which heads can be shown."""
    # Imported late: the analysis imports scikit-learn and scipy.
    from regard.observation.analysis.clustering import cluster
    from regard.observation.analysis.patterns import recognise

    page_model = packets.page_model
    head_facts: list[Any] = []
    heads_shown: list[tuple[int, int]] = []
    for number in page_model.sites(variant):
        try:
            site = page_model.site(variant, number)
            which = packets.shown(MapRequest(variant, number, call=call))
            keys = site.shape(-1 if which is None else which)[3]
            heads = recognise(site, _tokens(page_model, variant, number, keys), call=which)
            if page_model.page_sites[number].cross:
                heads = [_between_sequences(fact) for fact in heads]
        except RegardError:  # a layer whose weights cannot be computed
            continue
        head_facts += heads
        heads_shown += [(number, head) for head in range(len(heads))]
    groups = cluster(head_facts, _fine(len(head_facts)))
    sites: dict[int, list[dict[str, Any]]] = {}
    importance = page_model.variants[variant].importance
    for (number, head), fact, group in zip(heads_shown, head_facts, groups.labels, strict=True):
        sequence = (
            page_model.page_sites[number].group != "memory"
        )  # slots have no order, so patterns mean nothing there
        sites.setdefault(number, []).append(
            {
                "entropy": rounded(fact.entropy),
                "pattern": fact.pattern if sequence else None,
                "scores": {name: rounded(score) for name, score in fact.scores.items()} if sequence else {},
                "cluster": group,
                "importance": rounded(importance.get((page_model.site(variant, number).name, head), math.nan)),
            }
        )
    by_entropy = sorted(
        range(len(head_facts)), key=lambda n: (not np.isfinite(head_facts[n].entropy), head_facts[n].entropy)
    )
    orders: dict[str, Sequence[int]] = {
        "pattern": _by_pattern(head_facts),
        "entropy": by_entropy,
        "cluster": groups.order,
    }
    if importance:
        importances = [importance.get((fact.site, fact.head), 0.0) for fact in head_facts]
        orders["importance"] = sorted(range(len(head_facts)), key=lambda n: (-abs(importances[n]), n))
    return {
        "groups": _group_names(head_facts, groups.labels),
        "sites": [{"site": number, "heads": heads} for number, heads in sites.items()],
        "order": {name: [list(heads_shown[n]) for n in order] for name, order in orders.items()},
    }


def _between_sequences(one: Any) -> Any:
    """The facts of a head that attends from one sequence to another: patterns of one sequence mean nothing there."""
    from regard.observation.analysis.patterns import name_of

    scores = {name: score for name, score in one.scores.items() if name not in WITHIN_ONE}
    return dataclasses.replace(one, scores=scores, pattern=name_of(scores))


def _fine(heads: int) -> int | None:
    """How many groups of similar heads: enough to tell kinds apart; for a few heads as many as are clear."""
    return min(MOST_GROUPS, max(4, heads // 9)) if heads >= FEW_HEADS else None


def _group_names(found: Sequence[Any], labels: Sequence[int]) -> list[str]:
    """A name for each group: the pattern of most of its heads, and how sharp they are; no two are equal."""
    names: list[str] = []
    middle = float(np.median([head.entropy for head in found])) if found else 0.0
    for group in range(max(labels, default=-1) + 1):
        members = [head for head, label in zip(found, labels, strict=True) if label == group]
        kind = _kind(members)
        sharp = "sharp" if np.mean([head.entropy for head in members]) < middle else "broad"
        name = f"{kind}, {sharp}"
        same = sum(earlier == name or earlier.startswith(f"{name} (") for earlier in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names


def _kind(heads: Sequence[Any]) -> str:
    """What most heads of a group do; of heads without a clear pattern the two patterns with the highest mean score."""
    patterns = [head.pattern for head in heads]
    most = max(dict.fromkeys(patterns), key=patterns.count)
    if most != MIXED:
        return most if patterns.count(most) == len(heads) else f"mostly {most}"
    means = {
        name: float(np.mean([head.scores.get(name, 0.0) for head in heads]))
        for name in dict.fromkeys(name for head in heads for name in head.scores)
    }
    best = sorted(means, key=lambda name: -means[name])[:2]
    return " and ".join(best) if best else MIXED


def rounded(value: float) -> float | None:
    """A number rounded for the page; None for NaN and infinities."""
    number = finite(value)
    return None if number is None else float(f"{number:.{DIGITS}g}")


def _tokens(page_model: PageModel, variant: int, site: int, keys: int) -> Sequence[Any] | None:
    """The tokens of a site's keys, where they are known: ids, else texts."""
    page_variant, kind = page_model.variants[variant], page_model.page_sites[site].columns
    if kind == "tokens" and page_variant.ids is not None and len(page_variant.ids) >= keys:
        return list(page_variant.ids)[:keys]
    texts = page_variant.labels.get(kind, ())
    return list(texts[:keys]) if kind in ("tokens", "targets", "read") and len(texts) >= keys else None


def _by_pattern(found: Sequence[Any]) -> list[int]:
    """Heads grouped by pattern, the highest score first; patterns with most heads first."""
    counts: dict[str, int] = {}
    for head in found:
        counts[head.pattern] = counts.get(head.pattern, 0) + 1

    def order(number: int) -> tuple[Any, ...]:
        head = found[number]
        last = head.pattern == MIXED  # not a pattern: comes last
        return last, -counts[head.pattern], head.pattern, -head.scores.get(head.pattern, 0.0), number

    return sorted(range(len(found)), key=order)
