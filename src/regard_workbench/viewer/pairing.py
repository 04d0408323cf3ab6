"""Pairing the sites of several models, which may differ in depth and in module paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from regard_workbench.viewer.page_sites import PageSite


@dataclass
class SiteRow:
    """One site as the page lists it, with its name in each variant that has it."""

    page_site: PageSite
    names: dict[int, str] = field(default_factory=dict)  # by variant


def paired(variants: Sequence[Sequence[PageSite]]) -> list[SiteRow]:
    """The sites of all variants in the order of the first; a site that the first lacks follows its predecessor.

    A site is paired with the one of the same name (two checkpoints), else with the one of the same label: `layer 3`
    is `encoder.layer.3.…` in one model and `bert.encoder.layer.3.…` in another. Models whose sites match in
    nothing but their number are paired in order.
    """
    rows = [SiteRow(page_site, {0: page_site.name}) for page_site in variants[0]]
    for variant, page_sites in enumerate(variants[1:], 1):
        partners = _partners(rows, page_sites)
        last = -1
        for number, page_site in enumerate(page_sites):
            row = partners.get(number)
            if row is None:
                row = SiteRow(_distinct(page_site, rows))
                rows.insert(last + 1, row)
            row.names[variant] = page_site.name
            last = next(at for at, candidate in enumerate(rows) if candidate is row)
    return rows


def _partners(rows: Sequence[SiteRow], page_sites: Sequence[PageSite]) -> dict[int, SiteRow]:
    """The row of each site of a variant, by the site's index; sites without a row are absent."""
    partners: dict[int, SiteRow] = {}
    free = list(rows)
    for same in (_same_name, _same_label):
        for number, page_site in enumerate(page_sites):
            row = (
                None
                if number in partners
                else next((candidate for candidate in free if same(candidate, page_site)), None)
            )
            if row is not None:
                partners[number] = row
                free.remove(row)
    if not partners and len(rows) == len(page_sites):
        return dict(enumerate(rows))
    return partners


def _same_name(row: SiteRow, page_site: PageSite) -> bool:
    return page_site.name in row.names.values()


def _same_label(row: SiteRow, page_site: PageSite) -> bool:
    return (row.page_site.label, row.page_site.group) == (page_site.label, page_site.group)


def _distinct(page_site: PageSite, rows: Sequence[SiteRow]) -> PageSite:
    """The site with a unique label."""
    labels = {row.page_site.label for row in rows}
    return replace(page_site, label=page_site.name) if page_site.label in labels else page_site
