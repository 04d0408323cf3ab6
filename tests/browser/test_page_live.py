"""Another input on the live page: typed, dropped, edited, continued."""

import re
from xml.etree import ElementTree

from tests.browser.driving import opened, saved, saved_as, state, until
from tests.browser.page_models import GIRL, HOSTILE
from tests.observation import peers

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
    assert {name: state(page)[name] for name in ("view", "site", "head")} == {"view": "tokens", "site": 1, "head": 2}
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
    until(page, "document.querySelector('[data-testid=input-status]').textContent.includes('at most 32 tokens')")
    assert page.evaluate(f"() => {TOKENS}") == "the cat sat"


def test_hostile_texts_stay_text(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, " ".join(HOSTILE[:3]) + " " + HOSTILE[4])
    assert page.evaluate("() => document.querySelectorAll('#regard img, #regard script, #regard iframe').length") == 0
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
    opened(page, page_models["live"], "tokens")
    typed(page, "the cat sat on a mat")
    page.get_by_test_id("tab-causes").click()
    page.get_by_test_id("against").fill("the cat sat on a dog")
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
        page, "/Matters|Not shown to matter with 200/.test(document.querySelector('[data-testid=verdict]').textContent)"
    )
    for view in ("overview", "tokens"):
        page.get_by_test_id(f"tab-{view}").click()
        until(page, "document.querySelector('[data-testid=verdict]')?.textContent.includes('random')")
    page.get_by_test_id("tab-causes").click()
    rows = page.get_by_test_id("faithfulness").locator("tbody tr")
    rows.first.wait_for()  # the page first asks what this model allows
    assert rows.count() == 2


def test_layers_heads_and_inputs_are_asked_what_they_did(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, "the cat sat on a mat")
    page.get_by_test_id("tab-causes").click()
    said = page.get_by_test_id("answer").inner_text()  # next “word” 12.3 %
    word = re.search(r"“\s?([^”]+)”", said)[1]
    page.get_by_test_id("lens-ask").click()
    best = page.get_by_test_id("lens").locator("table").first.locator("tbody tr")
    best.nth(2).wait_for()
    assert best.count() == 3  # before any layer, and after each of two
    assert best.last.locator("td").first.inner_text().startswith(word)
    page.get_by_test_id("contributions-ask").click()
    parts = page.get_by_test_id("contributions")
    parts.locator(".heat-cell").first.wait_for()
    assert parts.locator(".heat-cell").count() == 2 * 4 and "of rounding" in parts.inner_text()
    page.get_by_test_id("inputs-ask").click()
    page.get_by_test_id("completeness").wait_for()
    assert "Completeness gap of integrated gradients" in page.get_by_test_id("completeness").inner_text()
    assert "Rank correlation" in page.get_by_test_id("inputs").inner_text()
    rows = saved(page, "csv").decode().splitlines()
    assert rows[0] == "part,logit" and len(rows) == 1 + 2 * 4 + 3  # heads; the rest of two layers; the embedding


def test_a_researcher_finds_the_heads_that_matter_shows_it_and_saves_the_figure(page, page_models):
    """Issue 22, done when: open, type, find, show, export, on one page; with the real story teller."""
    peers.shared("models", "stories260k")
    opened(page, page_models["story"], "overview")
    girl = GIRL.replace("play outside", "play inside")
    typed(page, girl)
    assert "“ she”" in page.get_by_test_id("answer").inner_text()
    page.get_by_test_id("tab-causes").click()
    page.get_by_test_id("against").fill(girl.replace("girl", "boy").replace("Lily", "Tim").replace("She", "He"))
    page.get_by_test_id("patch").click()
    first = page.get_by_test_id("largest").locator("button").first
    first.wait_for()
    assert first.inner_text().startswith("layer 4 · head ")  # the writers of docs/causes.md
    page.get_by_test_id("by-paths").click()
    page.get_by_test_id("patch").click()
    until(page, "document.querySelector('[data-testid=patch-status]').innerText.includes('direct paths')")
    assert page.get_by_test_id("largest").locator("button").first.inner_text().startswith("layer 4 · head ")
    page.get_by_test_id("maps-ask").click()
    page.get_by_test_id("faithfulness").wait_for()
    name, figure = saved_as(page, "svg")
    texts = [element.text or "" for element in ElementTree.fromstring(figure).iter()]
    assert "causes" in name
    assert any("logit of “ she” − logit of “ he”" in text for text in texts)
    assert "Which parts carry the answer?" in texts and "Do the maps matter?" in texts
    assert "What did each head write?" not in texts  # a section that was not asked
    page.get_by_test_id("largest").locator("button").first.click()
    until(page, "window.__regard.state().view === 'matrix' && window.__regard.state().site === 4")


def test_a_saved_figure_of_causes_holds_what_its_table_scrolls_to(page, page_models):
    page.set_viewport_size({"width": 360, "height": 740})
    opened(page, page_models["live"], "tokens")
    typed(page, "the cat sat on a mat and looked at a dog")
    page.get_by_test_id("tab-causes").click()
    page.get_by_test_id("against").fill("the dog sat on a mat and looked at a cat")
    page.get_by_test_id("by-layers").click()
    page.get_by_test_id("patch").click()
    until(page, "document.querySelectorAll('.heat-cell').length === 22")
    root = ElementTree.fromstring(saved(page, "svg"))
    texts = [element for element in root.iter() if (element.text or "").strip()]
    right = max(float(element.get("x", 0)) for element in texts)
    assert right > 400 and float(root.get("width").removesuffix("px")) > right  # wider than the window, not cut
    assert not page.evaluate("() => document.querySelector('.tracing')")
