"""What is known about every head: how spread its weights are, which pattern it follows, which heads are like it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard.viewer.codes import Weights
from regard.viewer.packets import Asked, Packets
from regard.viewer.places import Place
from regard.viewer.stage import Stage, finite

DIGITS = 5
MOST_ROLLED = 1 << 29  # weights of all layers together: some seconds


def facts(packets: Packets, variant: int, call: int) -> dict[str, Any]:
    """For each site its heads, and orders in which heads can be shown."""
    # Loaded late: the analysis brings scikit-learn and scipy along.
    from regard.observation.analysis.clustering import cluster
    from regard.observation.analysis.patterns import recognise

    stage = packets.stage
    found: list[Any] = []
    places: list[tuple[int, int]] = []
    for number in stage.sites(variant):
        try:
            site = stage.site(variant, number)
            which = packets.shown(Asked(variant, number, call=call))
            keys = site.shape(-1 if which is None else which)[3]
            heads = recognise(site, _tokens(stage, variant, number, keys), call=which)
        except RegardError:  # a layer whose weights cannot be told
            continue
        found += heads
        places += [(number, head) for head in range(len(heads))]
    groups = cluster(found)
    sites: dict[int, list[dict[str, Any]]] = {}
    importance = stage.variants[variant].importance
    for (number, head), one, group in zip(places, found, groups.labels, strict=True):
        sequence = stage.places[number].group != "memory"  # slots have no order that a pattern could follow
        sites.setdefault(number, []).append(
            {
                "entropy": rounded(one.entropy),
                "pattern": one.pattern if sequence else None,
                "scores": {name: rounded(score) for name, score in one.scores.items()} if sequence else {},
                "cluster": group,
                "importance": rounded(importance.get((stage.site(variant, number).name, head), math.nan)),
            }
        )
    by_entropy = sorted(
        range(len(found)), key=lambda n: (not np.isfinite(found[n].entropy), found[n].entropy)
    )
    orders: dict[str, Sequence[int]] = {
        "pattern": _by_pattern(found),
        "entropy": by_entropy,
        "cluster": groups.order,
    }
    if importance:
        known = [importance.get((one.site, one.head), 0.0) for one in found]
        orders["importance"] = sorted(range(len(found)), key=lambda n: (-abs(known[n]), n))
    return {
        "sites": [{"site": number, "heads": heads} for number, heads in sites.items()],
        "order": {name: [list(places[n]) for n in order] for name, order in orders.items()},
    }


def rollout(stage: Stage, variant: int, call: int, row: int) -> Weights:
    """How much of each input is in a position after all layers of self-attention over the tokens."""
    from regard.observation.analysis.rollout import rollout as rolled

    own = stage.seen(variant)
    layers = [
        stage.site(variant, number).name
        for number in stage.sites(variant)
        if _over_tokens(stage.places[number], stage.main)
    ]
    if not layers:
        raise BadValue("There is no rollout here: no layer looks from the tokens at the tokens.")
    _, heads, queries, keys = own[layers[0]].shape(-1)
    if len(layers) * heads * max(queries, keys) ** 2 > MOST_ROLLED:
        raise BadValue(
            "There is no rollout of an input as long as this: it would need every weight of every layer."
        )
    steps = stage.generation is not None and own[layers[0]].calls > 1
    found = rolled(
        own, [row], layers=layers, call=None if steps else call
    )  # None: prompt and steps as one map
    return np.asarray(found[0].float().cpu().numpy(), np.float32)


def _over_tokens(place: Place, main: str) -> bool:
    return place.rows == place.columns == main and place.group != "memory"


def rounded(value: float) -> float | None:
    """A number with the digits a page shows; None where JSON has no form for it."""
    number = finite(value)
    return None if number is None else float(f"{number:.{DIGITS}g}")


def _tokens(stage: Stage, variant: int, site: int, keys: int) -> Sequence[Any] | None:
    """What stands at the keys of a site, where that is known: ids, else texts."""
    own, kind = stage.variants[variant], stage.places[site].columns
    if kind == "tokens" and own.ids is not None and len(own.ids) >= keys:
        return list(own.ids)[:keys]
    texts = own.labels.get(kind, ())
    return list(texts[:keys]) if kind in ("tokens", "targets", "read") and len(texts) >= keys else None


def _by_pattern(found: Sequence[Any]) -> list[int]:
    """Heads of one pattern together, the clearest first; patterns in the order of how many heads follow them."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.pattern] = counts.get(one.pattern, 0) + 1

    def place(number: int) -> tuple[Any, ...]:
        one = found[number]
        last = one.pattern == "mixed"  # a name for what has none
        return last, -counts[one.pattern], one.pattern, -one.scores.get(one.pattern, 0.0), number

    return sorted(range(len(found)), key=place)
