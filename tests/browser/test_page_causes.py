"""The page's Causes: only numbers of the question that is chosen, no shares of nothing, only what a model allows."""

import csv
import re

import pytest
import torch

import regard
from tests.browser.driving import opened, saved, state, until
from tests.browser.page_models import scratch
from tests.browser.test_page_live import typed

CAT, DOG = "the cat sat on a mat", "the cat sat on a dog"  # the small model says the last word again


@pytest.fixture(scope="module")
def numbers():
    """What the library gives for the page's model: the shares of a sweep."""
    transformers = pytest.importorskip("transformers")
    from tests.viewer.pretrained import save

    folder = save("gpt2", scratch("causes"))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    pieces = transformers.AutoTokenizer.from_pretrained(folder)
    clean, corrupted = (pieces(text, return_tensors="pt") for text in (CAT, DOG))
    with torch.no_grad(), regard.observe(model) as seen:
        model(**clean)

    def cells(by, **options):
        found = (
            seen.patch_paths(clean, corrupted, **options)
            if by == "paths"
            else seen.patch(clean, corrupted, at=by, **options)
        )
        return pytest.approx(found.recovered.flatten().tolist(), rel=1e-3, abs=1e-6)

    return cells


def shown(page):
    """The shares of the sweep that the page shows, as it saves them."""
    _, *rows = csv.reader(saved(page, "csv").decode().splitlines())
    return [float(row[-1]) for row in rows]


def patched(page, text, waits="for this input"):
    page.get_by_test_id("against").fill(text)
    page.get_by_test_id("patch").click()
    told(page, waits)


def told(page, words):
    until(page, "document.querySelector('[data-testid=patch-status]')?.innerText.includes(given)", words)


def test_every_choice_shows_its_own_numbers(page, page_models, numbers):
    opened(page, page_models["live"], "tokens")
    typed(page, CAT)
    page.get_by_test_id("tab-causes").click()
    patched(page, DOG)
    heads, paths, layers = numbers("heads"), numbers("paths"), numbers("layers")
    assert shown(page) == heads != paths.expected
    page.get_by_test_id("by-paths").click()
    told(page, "direct paths to the answer")
    assert shown(page) == paths
    page.get_by_test_id("by-layers").click()
    until(page, "document.querySelectorAll('.heat-cell').length === 12")
    assert shown(page) == layers
    page.get_by_test_id("by-heads").click()  # was asked before: shown at once
    assert shown(page) == heads
    page.get_by_test_id("measure").select_option("probability")
    told(page, "probability of “")
    assert shown(page) == numbers("heads", measure="probability")
    page.evaluate("() => { location.hash = '#view=causes&v=by=paths'; }")
    told(page, "direct paths to the answer")
    assert page.get_by_test_id("by-paths").get_attribute("aria-checked") == "true"
    assert shown(page) == numbers("paths", measure="probability")
    page.get_by_test_id("tab-tokens").click()
    page.get_by_test_id("tab-causes").click()  # another visit shows the same question
    assert page.get_by_test_id("measure").input_value() == "probability" and state(page)["v"] == "by=paths"
    assert shown(page) == numbers("paths", measure="probability")


def test_equal_answers_have_no_shares(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, CAT)
    page.get_by_test_id("tab-causes").click()
    patched(page, "the dog sat on a mat", "both inputs have the same answer")
    assert page.locator(".heat-cell").count() == 0 and not page.get_by_test_id("largest").is_visible()
    assert "%" not in page.get_by_test_id("patch-status").inner_text()


def test_a_text_of_another_length_is_refused_in_the_words_of_the_page(context, page_models):
    page = context.new_page()  # the browser itself logs the refusal
    opened(page, page_models["live"], "tokens")
    typed(page, CAT)
    page.get_by_test_id("tab-causes").click()
    patched(page, "the cat", "Expected a text of as many tokens as this input, 6, got 2")


def test_verdicts_give_p_values_and_claim_no_equality(page, page_models):
    opened(page, page_models["live"], "tokens")
    typed(page, CAT)
    page.get_by_test_id("tab-causes").click()
    page.get_by_test_id("maps-ask").click()
    rows = page.get_by_test_id("faithfulness").locator("tbody tr")
    rows.first.wait_for()
    for text in rows.all_inner_texts():
        assert text.count("p = ") + text.count("p < ") == 3 and re.search(r"(not shown to )?matters?$", text)
    text = page.locator(".causes-view").inner_text()
    assert "no better than random" not in text.lower() and "corrected for 2 maps by Holm’s procedure" in text
    head, *lines = saved(page, "csv").decode().splitlines()
    assert head.split(",")[-2:] == ["p of both (Holm)", "matters"] and len(lines) == 2


def test_sections_that_cannot_work_are_not_offered(page, page_models):
    """A machine with a memory that writes bits: no classes, no heads to change, no keys that are inputs."""
    opened(page, page_models["memory"], "causes")
    note = page.get_by_test_id("impossible")
    note.wait_for()
    assert "it does not answer with one of several classes" in note.inner_text()
    for section in ("lens-ask", "contributions-ask", "patch"):
        assert page.get_by_test_id(section).count() == 0
    page.get_by_test_id("inputs-ask").click()
    inputs = page.get_by_test_id("inputs")
    inputs.locator(".heat-cell").first.wait_for()
    rows = inputs.locator("tbody th").all_inner_texts()
    assert rows == ["integrated gradients", "gradient × input"]
    assert "Without attention: there is no site whose keys are the 8 inputs" in inputs.inner_text()
    assert page.get_by_test_id("maps-ask").count() == 0


def test_pages_that_were_replaced_leave_nothing_behind(page, page_models):
    """Twelve pages would leave 1,200 listeners; the browser may keep one page of a hundred for a while."""
    opened(page, page_models["live"], "tokens")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def listeners():
        session.send("HeapProfiler.collectGarbage")
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "JSEventListeners")

    for text in (CAT, DOG, CAT):
        typed(page, text)
    before = listeners()
    for text in (DOG, CAT) * 6:
        typed(page, text)
    left = listeners()
    for _ in range(40):  # timers and frames of the last page may still hold it for a while
        if left <= before + 100:
            break
        page.wait_for_timeout(250)
        left = listeners()
    assert left <= before + 100
