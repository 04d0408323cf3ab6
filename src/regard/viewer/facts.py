"""Facts about every head: its entropy, its pattern, its cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.errors import BadValue, RegardError
from regard.viewer.codes import Weights
from regard.viewer.packets import MapRequest, Packets
from regard.viewer.page_model import PageModel, finite
from regard.viewer.page_sites import PageSite

DIGITS = 5
MOST_ROLLED = 1 << 29  # weights of all layers together: takes some seconds


def facts(packets: Packets, variant: int, call: int) -> dict[str, Any]:
    """The facts of each site's heads, and orders in which heads can be shown."""
    # Imported late: the analysis imports scikit-learn and scipy.
    from regard.observation.analysis.clustering import cluster
    from regard.observation.analysis.patterns import recognise

    page_model = packets.page_model
    found: list[Any] = []
    heads_shown: list[tuple[int, int]] = []
    for number in page_model.sites(variant):
        try:
            site = page_model.site(variant, number)
            which = packets.shown(MapRequest(variant, number, call=call))
            keys = site.shape(-1 if which is None else which)[3]
            heads = recognise(site, _tokens(page_model, variant, number, keys), call=which)
        except RegardError:  # a layer whose weights cannot be computed
            continue
        found += heads
        heads_shown += [(number, head) for head in range(len(heads))]
    groups = cluster(found)
    sites: dict[int, list[dict[str, Any]]] = {}
    importance = page_model.variants[variant].importance
    for (number, head), one, group in zip(heads_shown, found, groups.labels, strict=True):
        sequence = (
            page_model.page_sites[number].group != "memory"
        )  # slots have no order, so patterns mean nothing there
        sites.setdefault(number, []).append(
            {
                "entropy": rounded(one.entropy),
                "pattern": one.pattern if sequence else None,
                "scores": {name: rounded(score) for name, score in one.scores.items()} if sequence else {},
                "cluster": group,
                "importance": rounded(
                    importance.get((page_model.site(variant, number).name, head), math.nan)
                ),
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
        "order": {name: [list(heads_shown[n]) for n in order] for name, order in orders.items()},
    }


def rollout(page_model: PageModel, variant: int, call: int, row: int) -> Weights:
    """How much of each input position is in a position after all layers of self-attention over the tokens."""
    from regard.observation.analysis.rollout import rollout as rolled

    own = page_model.seen(variant)
    layers = [
        page_model.site(variant, number).name
        for number in page_model.sites(variant)
        if _over_tokens(page_model.page_sites[number], page_model.main)
    ]
    if not layers:
        raise BadValue("There is no rollout here: no layer attends from the tokens to the tokens.")
    _, heads, queries, keys = own[layers[0]].shape(-1)
    if len(layers) * heads * max(queries, keys) ** 2 > MOST_ROLLED:
        raise BadValue("There is no rollout of an input this long: it needs every weight of every layer.")
    steps = page_model.generation is not None and own[layers[0]].calls > 1
    found = rolled(
        own, [row], layers=layers, call=None if steps else call
    )  # None joins prompt and steps to one map
    return np.asarray(found[0].float().cpu().numpy(), np.float32)


def _over_tokens(site: PageSite, main: str) -> bool:
    return site.rows == site.columns == main and site.group != "memory"


def rounded(value: float) -> float | None:
    """A number rounded for the page; None for NaN and infinities."""
    number = finite(value)
    return None if number is None else float(f"{number:.{DIGITS}g}")


def _tokens(page_model: PageModel, variant: int, site: int, keys: int) -> Sequence[Any] | None:
    """The tokens of a site's keys, where they are known: ids, else texts."""
    own, kind = page_model.variants[variant], page_model.page_sites[site].columns
    if kind == "tokens" and own.ids is not None and len(own.ids) >= keys:
        return list(own.ids)[:keys]
    texts = own.labels.get(kind, ())
    return list(texts[:keys]) if kind in ("tokens", "targets", "read") and len(texts) >= keys else None


def _by_pattern(found: Sequence[Any]) -> list[int]:
    """Heads grouped by pattern, the highest score first; patterns with most heads first."""
    counts: dict[str, int] = {}
    for one in found:
        counts[one.pattern] = counts.get(one.pattern, 0) + 1

    def order(number: int) -> tuple[Any, ...]:
        one = found[number]
        last = one.pattern == "mixed"  # not a pattern: comes last
        return last, -counts[one.pattern], one.pattern, -one.scores.get(one.pattern, 0.0), number

    return sorted(range(len(found)), key=order)
