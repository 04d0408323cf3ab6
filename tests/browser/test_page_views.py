"""Every other view on a small model of its kind: it opens, answers the pointer and the keys, and can be saved."""

from tests.browser.driving import opened, pixels, saved, state, until


def shows(page, address, view, **more):
    """A view with something in it, that fits the window in both themes and can be taken away."""
    opened(page, address, view, **more)
    page.wait_for_timeout(500)
    assert not page.get_by_test_id("notice").count(), page.get_by_test_id("notice").all_inner_texts()
    light = pixels(page)
    assert light[100:740, 240:1270].std() > 5  # a picture, not an empty place
    page.keyboard.press("t")
    page.wait_for_timeout(300)
    assert abs(pixels(page) - light).mean() > 50
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 1280
    assert saved(page, "svg").startswith(b"<")
    assert len(saved(page, "csv").splitlines()) > 2


def test_alignment(page, stages):
    shows(page, stages["alignment"], "alignment")


def test_timeline(page, stages):
    shows(page, stages["timeline"], "timeline")
    before = state(page)["variant"]
    page.get_by_test_id("checkpoint-0").click()
    until(page, "window.__regard.state().variant === 0")
    assert before != 0 or page.get_by_test_id("checkpoint-1").count()


def test_compare(page, stages):
    shows(page, stages["compare"], "compare")
    page.get_by_test_id("difference").wait_for()


def test_image(page, stages):
    shows(page, stages["vision"], "image")
    page.get_by_test_id("patch-5").hover()
    page.get_by_test_id("patch-5").click()
    until(page, "window.__regard.state().row !== null")


def test_memory(page, stages):
    shows(page, stages["memory"], "memory")


def test_a_difference_of_two_models_in_the_matrix(page, stages):
    opened(page, stages["compare"], "matrix", minus=1)
    page.wait_for_timeout(300)
    legend = page.get_by_test_id("legend").inner_text()
    assert "−" in legend and ("+" in legend or "0" in legend)
