"""The page as one file: opened from the disk, with the network cut, it shows what the server showed."""

import csv
import re

import pytest
import torch

from regard_workbench.cli.main import main
from regard_workbench.viewer.export import export
from tests.browser import page_models
from tests.browser.driving import opened, saved, until
from tests.browser.page_models import HOSTILE


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """By the command a user would type."""
    path = tmp_path_factory.mktemp("export") / "page.html"
    command = ["view", page_models.minilm_folder(), "--text", page_models.SENTENCE, "--export", path]
    assert main([str(word) for word in command]) == 0
    return path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return export(page_models.hostile(), tmp_path_factory.mktemp("hostile") / "page.html")


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """A page with room for one whole head of four."""
    path = tmp_path_factory.mktemp("long") / "page.html"
    return export(page_models.large(128, 2, 2), path, room=560_000)


@pytest.fixture
def offline(context, page):
    context.set_offline(True)
    return page


@pytest.mark.parametrize("view", ["overview", "matrix", "tokens"])
def test_an_exported_page_works_alone(offline, bert, view):
    opened(offline, bert.as_uri(), view, site=1, head=8)
    offline.wait_for_timeout(300)
    assert not offline.get_by_test_id("notice").count()
    if view == "matrix":
        offline.keyboard.press("+")
        offline.keyboard.press("ArrowDown")
        until(offline, "window.__regard.state().site === 2")
    if view == "tokens":
        offline.get_by_test_id("token-9").hover()
        until(offline, "/0\\.\\d/.test(document.querySelector('[data-testid=attends-to]').innerText)")
    assert saved(offline, "svg").startswith(b"<")


def test_an_exported_page_prints_no_digit_that_it_does_not_have(offline, bert):
    """A weight is stored to 8 bits, within three per cent: two digits, on the page and in what it saves."""
    from transformers import AutoModel, AutoTokenizer

    folder = page_models.minilm_folder()
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        given = AutoTokenizer.from_pretrained(folder)(page_models.SENTENCE, return_tensors="pt")
        weights = model(**given, output_attentions=True).attentions[1][0, 8]
    opened(offline, bert.as_uri(), "matrix", site=1, head=8, row=9, key=3)
    until(offline, "/\\d/.test(document.querySelector('[data-testid=weight]')?.innerText)")
    (shown,) = re.findall(r"^[\d.e−-]+$", offline.get_by_test_id("weight").inner_text())
    assert len(re.sub(r"^0\.0*|e.*$|\.", "", shown)) <= 2
    assert float(shown.replace("−", "-")) == pytest.approx(float(weights[9, 3]), rel=0.08)
    _, *rows = csv.reader(saved(offline, "csv").decode().splitlines())
    for row, expected in zip(rows, weights.tolist(), strict=True):
        for text, weight in zip(row[-15:], expected, strict=True):
            assert len(re.sub(r"^0\.?0*|e.*$|\.", "", text)) <= 2
            assert float(text) == pytest.approx(weight, rel=0.08, abs=2e-6)


def test_a_page_without_room_for_every_weight_says_what_it_left_out(offline, long):
    opened(offline, long.as_uri(), "matrix", site=1, head=1)
    assert "strongest" in offline.get_by_test_id("what").inner_text()
    opened(offline, long.as_uri())
    assert offline.get_by_test_id("cell-1-1").is_visible()


@pytest.mark.parametrize("view", ["overview", "tokens", "steps"])
def test_hostile_text_stays_text_in_a_file(offline, hostile, view):
    opened(offline, hostile.as_uri(), view)
    offline.wait_for_timeout(300)
    assert offline.title() != "broken"
    assert HOSTILE[0][:20] in offline.inner_text("h1")
    assert offline.evaluate("() => document.querySelectorAll('#regard img, #regard script').length") == 0
