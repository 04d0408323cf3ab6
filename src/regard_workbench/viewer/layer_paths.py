"""Rollout and flow for the page: what of each input position is in one position after all layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from regard.errors import BadValue
from regard.observation.analysis.both_sides import both_sides
from regard_workbench.viewer.codes import Weights
from regard_workbench.viewer.page_model import PageModel
from regard_workbench.viewer.page_sites import PageSite

MOST_ROLLED = 1 << 29  # weights of all layers together: takes some seconds
MOST_FLOWN = 1 << 24  # edges of the network × positions: one maximum flow for each position


def through_layers(page_model: PageModel, kind: str, variant: int, call: int, row: int, site: int | None) -> Weights:
    """Of one row: shares of each input position ("rollout") or the largest flow from each ("flow").

    site: whose columns are meant, where a decoder reads its own text and the encoder another.
    """
    observation = page_model.seen(variant)
    layers = [
        page_model.site(variant, number).name
        for number in page_model.sites(variant)
        if _over_tokens(page_model.page_sites[number], page_model.main)
    ]
    page_site = None if site is None else page_model.page_sites[site]
    written = page_site is not None and page_site.rows in ("targets", "read")
    if page_model.two_sides and written:
        layers = []
    elif not layers:
        raise BadValue(f"There is no {kind} here: no layer attends from the tokens to the tokens.")
    names = layers or observation.names()
    joined = page_model.generation is not None and any(observation[name].calls > 1 for name in names)
    which = None if joined else call
    _check_size(kind, [observation[name].shape(-1) for name in names])
    weights = _found(kind, observation, row, layers or None, which)
    if not layers:
        assert page_site is not None
        weights = _part(observation, weights, which, page_site.columns)
    return np.asarray(weights.float().cpu().numpy(), np.float32)


def _found(kind: str, own: Any, row: int, layers: list[str] | None, call: int | None) -> Any:
    # Imported late: the flow imports scipy.
    from regard.observation.analysis.flow import flow
    from regard.observation.analysis.rollout import rollout

    shares = (
        flow(own, [row], layers=layers, call=call) if kind == "flow" else rollout(own, [row], layers=layers, call=call)
    )
    return shares[0]


def _part(own: Any, found: Any, call: int | None, columns: str) -> Any:
    """What the decoder read, or what the encoder read."""
    sides = both_sides(own, call)
    assert sides is not None  # else the analysis has refused
    return found[: sides.targets] if columns in ("targets", "read") else found[sides.targets :]


def _check_size(kind: str, shapes: list[tuple[int, int, int, int]]) -> None:
    _, heads, queries, keys = shapes[0]
    longest = max(queries, keys)
    if kind == "rollout" and len(shapes) * heads * longest**2 > MOST_ROLLED:
        raise BadValue("There is no rollout of an input this long: it needs every weight of every layer.")
    if kind == "flow" and len(shapes) * longest**3 > MOST_FLOWN:
        raise BadValue("There is no flow of an input this long: it needs a network of every weight. Use rollout.")


def _over_tokens(site: PageSite, main: str) -> bool:
    return site.rows == site.columns == main and site.group != "memory"
