"""Which sites of several models belong together. Neither their depths nor the paths of their modules need be equal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from regard.viewer.places import Place


@dataclass
class Row:
    """One site as the page lists it, and what it is called in each variant that has it."""

    place: Place
    names: dict[int, str] = field(default_factory=dict)  # by variant


def paired(variants: Sequence[Sequence[Place]]) -> list[Row]:
    """The sites of all variants, in the order of the first; a site that it lacks follows the one before it.

    A site is paired with the one of the same name (two checkpoints), else with the one of the same label: `layer 3`
    is `encoder.layer.3.…` in one model and `bert.encoder.layer.3.…` in another. Models with nothing in common but
    the number of their sites are paired in order.
    """
    rows = [Row(place, {0: place.name}) for place in variants[0]]
    for variant, places in enumerate(variants[1:], 1):
        partners = _partners(rows, places)
        last = -1
        for number, place in enumerate(places):
            row = partners.get(number)
            if row is None:
                row = Row(_distinct(place, rows))
                rows.insert(last + 1, row)
            row.names[variant] = place.name
            last = next(at for at, one in enumerate(rows) if one is row)
    return rows


def _partners(rows: Sequence[Row], places: Sequence[Place]) -> dict[int, Row]:
    """For each site of a variant, by its number, the row it belongs to; nothing where it belongs to none."""
    found: dict[int, Row] = {}
    free = list(rows)
    for same in (_same_name, _same_label):
        for number, place in enumerate(places):
            row = None if number in found else next((one for one in free if same(one, place)), None)
            if row is not None:
                found[number] = row
                free.remove(row)
    if not found and len(rows) == len(places):
        return dict(enumerate(rows))
    return found


def _same_name(row: Row, place: Place) -> bool:
    return place.name in row.names.values()


def _same_label(row: Row, place: Place) -> bool:
    return (row.place.label, row.place.group) == (place.label, place.group)


def _distinct(place: Place, rows: Sequence[Row]) -> Place:
    """The place with a label that no other has."""
    taken = {row.place.label for row in rows}
    return replace(place, label=place.name) if place.label in taken else place
