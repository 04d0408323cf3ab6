"""Every other view on a small model: it opens, reacts to pointer and keys, and can be saved."""

from tests.browser.driving import opened, pixels, saved, state, until


def shows(page, address, view, **more):
    """A view with content that fits the window in both themes and can be saved."""
    opened(page, address, view, **more)
    page.wait_for_timeout(500)
    assert not page.get_by_test_id("notice").count(), page.get_by_test_id("notice").all_inner_texts()
    light = pixels(page)
    assert light[100:740, 240:1270].std() > 5  # not empty
    page.keyboard.press("t")
    page.wait_for_timeout(300)
    assert abs(pixels(page) - light).mean() > 50
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280
    assert saved(page, "svg").startswith(b"<")
    assert len(saved(page, "csv").splitlines()) > 2


def test_alignment(page, page_models):
    shows(page, page_models["alignment"], "alignment")


def test_timeline(page, page_models):
    shows(page, page_models["timeline"], "timeline")
    before = state(page)["variant"]
    page.get_by_test_id("checkpoint-0").click()
    until(page, "window.__regard.state().variant === 0")
    assert before != 0 or page.get_by_test_id("checkpoint-1").count()


def test_compare(page, page_models):
    shows(page, page_models["compare"], "compare")
    page.get_by_test_id("difference").wait_for()


def test_image(page, page_models):
    shows(page, page_models["vision"], "image")
    page.get_by_test_id("patch-5").hover()
    page.get_by_test_id("patch-5").click()
    until(page, "window.__regard.state().row !== null")


def test_memory(page, page_models):
    shows(page, page_models["memory"], "memory")


def test_graph(page, page_models):
    shows(page, page_models["graph"], "graph")
    assert page.get_by_test_id("graph-readout").inner_text().startswith("17 (community 2)")
    neighbour = page.get_by_test_id("attends-to").locator("li").nth(1)
    name = neighbour.inner_text().split("(")[0].strip()
    neighbour.click()
    until(page, "window.__regard.state().row !== null")
    page.wait_for_timeout(300)
    assert name.split()[-1] in page.get_by_test_id("graph-readout").inner_text()


def test_a_difference_of_two_models_in_the_matrix(page, page_models):
    opened(page, page_models["compare"], "matrix", minus=1)
    page.wait_for_timeout(300)
    legend = page.get_by_test_id("legend").inner_text()
    assert "−" in legend and ("+" in legend or "0" in legend)
