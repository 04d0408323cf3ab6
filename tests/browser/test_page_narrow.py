"""The page in a narrow window, and keyboard focus after a click."""

import pytest

from tests.browser.driving import cell, opened, settled, state, until

WIDTHS = (400, 800, 1400)
HIDDEN = """() => [...document.querySelectorAll('figcaption, .words, .answer, h1, .rail-label, .board-label')]
    .filter(one => one.offsetParent)
    .filter(one => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 2)
    .map(one => one.textContent)"""


@pytest.fixture
def narrow(page):
    page.set_viewport_size({"width": 400, "height": 800})
    return page


def test_the_matrix_can_be_read_and_pointed_at_in_400_pixels(narrow, page_models):
    opened(narrow, page_models["minilm"], "matrix", site=3, head=1)
    box = narrow.get_by_test_id("matrix").bounding_box()
    assert box["width"] >= 260 and box["height"] >= 220 and box["x"] + box["width"] <= 400
    narrow.mouse.click(*cell(narrow, 9, 2))
    until(narrow, "/\\d/.test(document.querySelector('[data-testid=weight]')?.innerText)")
    assert (state(narrow)["row"], state(narrow)["key"]) == (9, 2)
    weight = narrow.get_by_test_id("weight")
    weight.scroll_into_view_if_needed()
    assert weight.bounding_box()["x"] >= 0
    narrow.get_by_test_id("rail-5-11").click()
    assert (state(narrow)["site"], state(narrow)["head"]) == (5, 11)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", ["overview", "matrix", "tokens", "compare"])
def test_no_view_is_wider_than_its_window_and_no_caption_is_cut(page, page_models, view, width):
    page.set_viewport_size({"width": width, "height": 800})
    opened(page, page_models["unequal"], view, site=1, head=1, variant=1 if view != "compare" else 0)
    page.wait_for_timeout(400)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    cut = page.evaluate(HIDDEN)
    # In a wide window one line of text may end in an ellipsis; its title has the whole text.
    assert not [text for text in cut if width <= 900 or not text.startswith("the same seven")]


def test_tilted_labels_have_room_at_the_right_edge(narrow, page_models):
    """The last tilted label extends beyond the map and must be inside the canvas."""
    opened(narrow, page_models["unequal"], "matrix", site=1, head=1)
    settled(narrow)
    sizes = narrow.evaluate(
        """() => { const of = name => document.querySelector(name).getBoundingClientRect();
            const [plot, axis, area] = ['.plot', '.axis-top', '.plot-area'].map(of);
            return [axis.right - plot.right, area.right - axis.right]; }"""
    )
    assert sizes[0] >= 30 and sizes[1] >= -1


def test_arrow_keys_change_the_head_after_a_click_on_a_tab(page, page_models):
    opened(page, page_models["minilm"], "overview", site=2, head=3)
    page.get_by_test_id("tab-matrix").click()
    page.keyboard.press("ArrowRight")
    assert (state(page)["view"], state(page)["head"]) == ("matrix", 4)
    page.keyboard.press("ArrowDown")
    assert (state(page)["view"], state(page)["site"]) == ("matrix", 3)
    page.get_by_test_id("tab-overview").click()
    page.keyboard.press("ArrowLeft")
    assert (state(page)["view"], state(page)["head"]) == ("overview", 3)
    page.keyboard.press("Enter")
    assert state(page)["view"] == "matrix"


def test_arrow_keys_change_the_tab_when_a_tab_has_keyboard_focus(page, page_models):
    opened(page, page_models["minilm"], "matrix", site=2, head=3)
    page.get_by_test_id("tab-matrix").focus()
    page.keyboard.press("ArrowRight")
    assert (state(page)["view"], state(page)["head"]) == ("tokens", 3)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert state(page)["view"] == "overview"
    page.keyboard.press("Enter")  # a tab that is opened by a key keeps the focus
    assert page.evaluate("() => document.activeElement.dataset.testid") == "tab-overview"


def test_the_answer_of_a_classifier_is_on_the_page(page, page_models):
    opened(page, page_models["unequal"], "matrix", variant=1)
    assert page.get_by_test_id("answer").inner_text() == "<b>good</b> 61.5 %"
    assert "bad 38.5 %" in page.locator(".answer").get_attribute("title")
    opened(page, page_models["unequal"], "matrix", variant=0)
    assert not page.get_by_test_id("answer").is_visible()
    opened(page, page_models["unequal"], "compare")
    until(page, "document.body.innerText.includes('<b>good</b> 61.5 %')")


def test_models_of_another_depth_and_prefix_are_compared_where_they_can_be(page, page_models):
    opened(page, page_models["unequal"], "compare", site=1, head=1)
    page.get_by_test_id("differs-0-0").wait_for()
    listed = page.get_by_test_id("differ-most")
    assert listed.locator("li").count() == 4  # two heads in each of two layers
    assert "Only in A: layer 2, layer 3, layer 4." in listed.inner_text()
    page.get_by_test_id("rail-3-0").click()
    until(page, "/has no layer 3/.test(document.querySelector('[data-testid=map-b]').innerText)")
    page.get_by_test_id("rail-0-2").click()
    until(
        page,
        "/no head 2 in layer 0; its heads are 0 to 1/"
        ".test(document.querySelector('[data-testid=difference]').innerText)",
    )
    opened(page, page_models["unequal"], "overview", variant=1)
    until(page, "document.querySelectorAll('[data-testid^=cell-]').length === 4")
