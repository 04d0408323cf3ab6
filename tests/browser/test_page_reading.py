"""A real BERT in the page: open, hover, zoom, switch heads, follow a link, and every number is the model's own."""

import csv
import re

import pytest
import torch

from tests.browser import page_models
from tests.browser.driving import cell, opened, pixels, saved, settled, state, until
from tests.browser.serving import viewed
from tests.observation import peers

CELLS = re.compile(r"cell-\d+-\d+")


@pytest.fixture(scope="module")
def address():
    with viewed(str(page_models.minilm_folder()), "--text", page_models.SENTENCE) as found:
        yield found


@pytest.fixture(scope="module")
def maps():
    """Eager attention of the same model on the same sentence: (layers, heads, 15, 15)."""
    from transformers import AutoModel, AutoTokenizer

    folder = page_models.minilm_folder()
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    given = AutoTokenizer.from_pretrained(folder)(page_models.SENTENCE, return_tensors="pt")
    return torch.cat(peers.eager_maps(model, **given))


def test_the_page_opens_on_an_overview_of_all_heads(page, address):
    page.goto(address)
    page.get_by_test_id("cell-5-11").wait_for()
    assert page.get_by_test_id(CELLS).count() == 6 * 12
    assert "token=" not in page.url  # the secret leaves the address bar
    assert "regard" in page.title()
    page.get_by_test_id("cell-0-2").hover()
    details = "document.querySelector('[data-testid=details]').innerText"
    until(page, f"{details}.includes('head 2') && /entropy\\s+\\d\\.\\d+ nats/.test({details})")
    for order in ("pattern", "entropy", "cluster"):
        page.get_by_test_id(f"sort-{order}").click()
        until(page, "window.__regard.state().sort === given", order)
        assert page.get_by_test_id(CELLS).count() == 6 * 12
    page.get_by_test_id("cell-1-8").click()
    page.get_by_test_id("matrix").wait_for()
    assert (state(page)["view"], state(page)["site"], state(page)["head"]) == ("matrix", 1, 8)


def test_pointing_at_a_cell_reads_its_exact_weight(page, address, maps):
    opened(page, address, "matrix", site=2, head=3)
    row, key = 9, 2  # "it" → "animal"
    page.mouse.move(*cell(page, row, key))
    until(page, "/\\d/.test(document.querySelector('[data-testid=weight]')?.innerText)")
    assert float(page.get_by_test_id("weight").inner_text()) == pytest.approx(maps[2, 3, row, key].item(), rel=6e-3)


def test_colours_of_the_matrix_are_those_of_the_weights(page, address, maps):
    """Pixels of the screen, against the palette applied to eager attention."""
    opened(page, address, "matrix", site=1, head=8, theme="light", scale="log")
    page.mouse.move(5, 5)
    colours = "weights => import('/palette.js').then(p => weights.map(w => p.color(p.codeOf(w), 'log', 'light')))"
    expected = page.evaluate(colours, maps[1, 8].flatten().tolist())
    picture = pixels(page)
    for place in range(0, 225, 7):
        x, y = cell(page, *divmod(place, 15))
        drawn = picture[round(y) - 10, round(x)].tolist()  # above the number in the cell
        # a weight on the border between two codes may fall to either side
        assert max(abs(a - b) for a, b in zip(drawn, expected[place], strict=True)) <= 6, (place, drawn)


def test_zoom_by_wheel_and_keys_and_back(page, address):
    opened(page, address, "matrix", site=2, head=3)
    whole = page.evaluate("() => window.__regard.frames().zoom")
    page.mouse.move(*cell(page, 4, 4))
    page.mouse.wheel(0, -400)
    until(page, "window.__regard.frames().zoom > 1.2 * given", whole)
    near = page.evaluate("() => window.__regard.frames().zoom")
    page.keyboard.press("+")
    until(page, "window.__regard.frames().zoom > 1.2 * given", near)
    page.keyboard.press("0")
    until(page, "Math.abs(window.__regard.frames().zoom - given) < 1e-6", whole)


def test_heads_and_layers_are_switched_by_keys_and_by_the_rail(page, address):
    opened(page, address, "matrix")
    for key in ("ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert (state(page)["site"], state(page)["head"]) == (1, 1)
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft"):
        page.keyboard.press(key)
    assert (state(page)["site"], state(page)["head"]) == (0, 11)
    page.get_by_test_id("rail-4-7").click()
    assert (state(page)["site"], state(page)["head"]) == (4, 7)
    settled(page)
    assert "0.1" in page.get_by_test_id("legend").inner_text()
    assert "exact" in page.get_by_test_id("what").inner_text()


def test_hovering_a_token_shows_what_it_attends_to(page, address, maps):
    opened(page, address, "tokens", site=3, head=8)
    page.get_by_test_id("token-9").hover()
    strongest = maps[3, 8, 9].topk(3)
    until(page, "document.body.innerText.includes('“it” at 9')")
    lines = page.get_by_test_id("attends-to").inner_text().split("\n")
    numbers = [float(line) for line in lines if re.fullmatch(r"0\.\d+", line)]
    assert numbers[:3] == pytest.approx(strongest.values.tolist(), rel=2e-3)
    places = [int(line) for line in lines if re.fullmatch(r"\d+", line)]
    assert places[:3] == strongest.indices.tolist()
    taken = page.get_by_test_id("attended-by").inner_text()
    first = float(re.search(r"^0\.\d+$", taken, flags=re.M).group())
    assert first == pytest.approx(maps[3, 8, :, 9].max().item(), rel=2e-3)


def test_a_link_restores_the_state(page, context, address):
    opened(page, address, "matrix", site=2, head=3)
    page.keyboard.press("t")
    page.get_by_test_id("rail-3-4").click()
    page.get_by_test_id("tab-tokens").click()
    page.get_by_test_id("token-4").click()
    until(page, "location.hash.includes('row=4')")
    before, link = state(page), page.url
    page.reload()
    page.get_by_test_id("token-4").wait_for()
    assert state(page) == before
    other = context.new_page()
    other.goto(link)
    other.get_by_test_id("token-4").wait_for()
    assert state(other) == before
    page.go_back()
    until(page, "window.__regard.state().view === 'matrix'")


@pytest.mark.parametrize(
    "link",
    [
        "#view=nothing&site=999&head=-4&row=1e9",
        "#%E0%A4%A",
        "#site=NaN&__proto__=1",
        "#view=<img src=x onerror=\"document.title='broken'\">",
    ],
)
def test_a_broken_link_opens_the_nearest_state(page, address, link):
    page.goto(address + link)
    page.get_by_test_id("cell-0-0").wait_for()
    assert state(page)["view"] == "overview"


def test_light_and_dark(page, address):
    page.emulate_media(color_scheme="dark")
    opened(page, address)
    dark = pixels(page)[790, 640].sum()
    page.get_by_test_id("theme").click()
    until(page, "window.__regard.state().theme === 'light'")
    page.wait_for_timeout(300)
    assert dark < 200 < 600 < pixels(page)[790, 640].sum()


@pytest.mark.parametrize("view", ["overview", "matrix", "tokens"])
def test_what_is_shown_can_be_saved_and_fits_the_window(page, address, view):
    opened(page, address, view, site=2, head=3)
    page.wait_for_timeout(300)
    for kind, start in (("svg", b"<"), ("pdf", b"%PDF-"), ("png", b"\x89PNG"), ("csv", b"")):
        content = saved(page, kind)
        assert content.startswith(start) and len(content) > 200
    for width in (1280, 800):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(100)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= width


def test_numbers_of_a_saved_table_are_the_weights(page, address, maps):
    opened(page, address, "matrix", site=2, head=3)
    rows = list(csv.reader(saved(page, "csv").decode().splitlines()))[1:]
    found = torch.tensor([[float(number) for number in row[-15:]] for row in rows])
    assert found.shape == (15, 15)
    assert (found - maps[2, 3]).abs().max() <= 1e-5


def test_help_names_the_keys(page, address):
    opened(page, address)
    page.keyboard.press("?")
    assert "layer" in page.get_by_test_id("help").inner_text().lower()
    page.keyboard.press("Escape")
    assert not page.get_by_test_id("help").is_visible()
