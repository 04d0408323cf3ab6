"""Another input on the live page: typed, dropped, edited, continued."""

import re
from xml.etree import ElementTree

from tests.browser.driving import opened, saved, state, until
from tests.browser.page_models import HOSTILE

TOKENS = "Array.from(document.querySelectorAll('.token'), one => one.textContent).join(' ')"


def number(page):
    return page.evaluate("() => fetch('/api/scene').then(r => r.json()).then(s => s.input.number)")


def typed(page, text):
    """Types a text and waits for its page."""
    before = number(page)
    page.get_by_test_id("input-text").fill(text)
    page.get_by_test_id("input-text").press("Enter")
    until(page, "window.__regard.input === given", before + 1)


def test_a_typed_sentence_is_shown_without_a_restart(page, page_models):
    opened(page, page_models["live"], "tokens", site=1, head=2)
    typed(page, "the dog looked at a cat")
    assert page.evaluate(f"() => {TOKENS}") == "the dog looked at a cat"
    assert {name: state(page)[name] for name in ("view", "site", "head")} == {
        "view": "tokens",
        "site": 1,
        "head": 2,
    }
    assert page.get_by_test_id("input-text").input_value() == "the dog looked at a cat"
    page.reload()
    until(page, f"{TOKENS} === 'the dog looked at a cat'")


def test_an_edited_token_shows_what_moved(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, "the cat sat on a mat")
    page.get_by_test_id("token-1").click()
    page.get_by_test_id("token-edit").fill("dog")
    page.get_by_test_id("token-change").click()
    until(page, "window.__regard.state().view === 'compare'")
    assert page.get_by_test_id("input-text").input_value() == "the dog sat on a mat"
    assert page.get_by_test_id("compare-a").locator("option").all_inner_texts() == ["edited", "as it was"]
    page.get_by_test_id("differ-most").locator("button").first.wait_for()
    shares = page.get_by_test_id("differ-most").locator(".bar-number").all_inner_texts()
    assert float(shares[0].split()[0]) > 0
    assert "next “" in page.inner_text(".compare-view")  # the answer before and after


def test_the_model_writes_from_the_page_and_says_how_sure_it_is(page, page_models):
    opened(page, page_models["live"], "overview")
    page.get_by_test_id("input-text").fill("the cat")
    page.get_by_test_id("input-count").fill("4")
    page.get_by_test_id("input-write").click()
    until(page, "window.__regard.state().view === 'steps'")
    assert "% per token" in page.get_by_test_id("answer").inner_text()


def test_the_answer_stands_on_the_page_and_on_saved_figures(page, page_models):
    opened(page, page_models["live"], "matrix")
    typed(page, "the cat sat on")
    answer = page.get_by_test_id("answer").inner_text()
    assert re.fullmatch(r"next “[^”]+” \d+\.\d %", answer)
    page.wait_for_timeout(300)
    texts = [element.text or "" for element in ElementTree.fromstring(saved(page, "svg")).iter()]
    assert any(answer in text for text in texts)


def test_a_text_that_cannot_be_read_leaves_the_page_as_it_was(context, page_models):
    page = context.new_page()  # the browser itself logs the refusal
    opened(page, page_models["live"], "tokens")
    typed(page, "the cat sat")
    page.get_by_test_id("input-text").fill("the " * 40)
    page.get_by_test_id("input-run").click()
    until(
        page, "document.querySelector('[data-testid=input-status]').textContent.includes('at most 32 tokens')"
    )
    assert page.evaluate(f"() => {TOKENS}") == "the cat sat"


def test_hostile_texts_stay_text(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, " ".join(HOSTILE[:3]) + " " + HOSTILE[4])
    assert (
        page.evaluate("() => document.querySelectorAll('#regard img, #regard script, #regard iframe').length")
        == 0
    )
    assert page.title() != "broken"


def test_a_dropped_picture_is_shown(page, page_models, tmp_path):
    from PIL import Image

    Image.new("RGB", (40, 40), (200, 30, 60)).save(tmp_path / "red.png")
    opened(page, page_models["vision"], "image")
    before = page.evaluate("() => fetch('/api/scene').then(r => r.json()).then(s => s.image.data)")
    page.get_by_test_id("input-image").set_input_files(str(tmp_path / "red.png"))
    until(page, "document.querySelector('.words').textContent.includes('red.png')")
    assert page.evaluate("() => fetch('/api/scene').then(r => r.json()).then(s => s.image.data)") != before
    assert state(page)["view"] == "image"


def test_a_sweep_of_patches_is_drawn_and_leads_to_its_heads(page, page_models):
    opened(page, page_models["live"], "causes")
    typed(page, "the cat sat on a mat")
    page.get_by_test_id("tab-causes").click()
    page.get_by_test_id("against").fill("the dog sat on a mat")
    page.get_by_test_id("patch").click()
    page.locator(".heat-cell").first.wait_for()
    assert page.locator(".heat-cell").count() == 2 * 4
    assert page.get_by_test_id("largest").locator("button").count() == 8
    page.get_by_test_id("by-layers").click()
    page.get_by_test_id("patch").click()
    until(page, "document.querySelectorAll('.heat-cell').length === 12")
    rows = saved(page, "csv").decode().splitlines()
    assert len(rows) == 1 + 12 and "layer 0" in rows[1]
    page.locator(".heat-cell").last.click()
    until(page, "window.__regard.state().view === 'matrix' && window.__regard.state().site === 1")


def test_beside_every_map_stands_whether_it_matters(page, page_models):
    opened(page, page_models["live"], "matrix", site=1)
    page.get_by_test_id("judge").click()
    until(
        page,
        "/Matters|No better than random/.test(document.querySelector('[data-testid=verdict]').textContent)",
    )
    for view in ("overview", "tokens"):
        page.get_by_test_id(f"tab-{view}").click()
        until(page, "document.querySelector('[data-testid=verdict]')?.textContent.includes('random')")
    page.get_by_test_id("tab-causes").click()
    assert page.get_by_test_id("faithfulness").locator("tbody tr").count() == 2
