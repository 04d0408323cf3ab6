"""axe-core finds no serious violation in any view, in both themes."""

import gzip
from pathlib import Path

import pytest

from tests.browser.driving import opened, until

AXE = Path(__file__).parent / "axe" / "axe.min.js.gz"
RUN = "() => axe.run(document, {resultTypes: ['violations']}).then(found => found.violations)"
VIEWS = [
    *(("live", view, theme) for view in ("overview", "tokens", "causes") for theme in ("light", "dark")),
    ("live", "matrix", "dark"),
    ("live", "lines", "light"),
    ("vision", "image", "light"),
    ("compare", "compare", "light"),
    ("alignment", "alignment", "light"),
    ("timeline", "timeline", "light"),
    ("memory", "memory", "dark"),
    ("graph", "graph", "light"),
]


def serious(page):
    """What axe-core complains about, as texts."""
    with gzip.open(AXE, "rt", encoding="utf-8") as file:
        page.evaluate(file.read())
    return [
        f"{one['impact']} {one['id']}: {node['html'][:200]} {node['failureSummary']}"
        for one in page.evaluate(RUN)
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(("model", "view", "theme"), VIEWS, ids=lambda value: str(value))
def test_no_view_has_a_serious_violation_of_accessibility(page, page_models, model, view, theme):
    opened(page, page_models[model], view, theme=theme)
    if view == "causes":
        page.get_by_test_id("against").fill("the cat sat on a dog")
        page.get_by_test_id("patch").click()
        page.locator(".heat-cell").first.wait_for()
        for part in ("contributions", "lens", "inputs", "maps"):
            page.get_by_test_id(f"{part}-ask").click()
            page.get_by_test_id(part).locator("table").first.wait_for()
    page.wait_for_timeout(500)
    assert not serious(page)


def test_a_generation_and_its_answer_are_accessible(page, page_models):
    opened(page, page_models["live"], "overview")
    page.get_by_test_id("input-text").fill("the cat")
    page.get_by_test_id("input-write").click()
    until(page, "window.__regard.state().view === 'steps'")
    page.wait_for_timeout(500)
    assert not serious(page)
