"""Saved files name what they contain: a head, the mean of a layer or a rollout, counted from 0."""

import csv
import re
import zlib

import pytest
import torch

from regard_workbench.viewer.export import export
from tests.browser import page_models
from tests.browser.driving import opened, saved_as, until


@pytest.fixture(scope="module")
def address(page_models):
    return page_models["minilm"]


@pytest.fixture(scope="module")
def maps():
    """Every map of the real BERT (layers, heads, q, k) by its own eager attention."""
    from transformers import AutoModel, AutoTokenizer

    folder = page_models.minilm_folder()
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    given = AutoTokenizer.from_pretrained(folder)(page_models.SENTENCE, return_tensors="pt")
    with torch.no_grad():
        return torch.cat(model(**given, output_attentions=True).attentions)


def table(content):
    return list(csv.DictReader(content.decode().splitlines()))


def test_a_saved_mean_is_named_and_computed_as_a_mean(page, address, maps):
    opened(page, address, "tokens", site=3, head=8, row=9, v="how=mean")
    until(page, "document.querySelector('[data-testid=token-readout]').innerText.includes('mean of 12 heads')")
    until(page, "document.querySelectorAll('[data-testid=attends-to] li').length > 2")
    name, content = saved_as(page, "csv")
    assert name.endswith("tokens-layer-3-mean-of-12-heads")
    rows = table(content)
    assert {(row["site"], row["head"]) for row in rows} == {("encoder.layer.3.attention.self", "mean of 12")}
    assert {(row["chosen position"], row["chosen token"]) for row in rows} == {("9", "it")}
    assert [int(row["position"]) for row in rows] == list(range(15))
    found = torch.tensor([float(row["weight from the chosen token"]) for row in rows])
    torch.testing.assert_close(found, maps[3, :, 9].mean(0), atol=1e-6, rtol=1e-4)
    found = torch.tensor([float(row["weight to the chosen token"]) for row in rows])
    torch.testing.assert_close(found, maps[3, :, :, 9].mean(0), atol=1e-6, rtol=1e-4)


def test_a_saved_rollout_is_named_so(page, address, maps):
    opened(page, address, "tokens", site=3, head=8, row=9, v="how=rollout")
    until(page, "document.querySelector('[data-testid=token-readout]').innerText.includes('rollout')")
    until(page, "document.querySelectorAll('[data-testid=attends-to] li').length > 2")
    name, content = saved_as(page, "csv")
    assert name.endswith("tokens-rollout-through-all-layers")
    rows = table(content)
    assert {(row["site"], row["head"]) for row in rows} == {("all layers", "rollout")}
    flow = torch.eye(15)
    for layer in maps:
        flow = (layer.mean(0) + torch.eye(15)) / 2 @ flow
    found = torch.tensor([float(row["weight from the chosen token"]) for row in rows])
    torch.testing.assert_close(found, flow[9], atol=1e-5, rtol=1e-3)


def test_heads_rows_and_columns_of_saved_files_count_from_0(page, address, maps):
    opened(page, address, "matrix", site=2, head=3)
    name, content = saved_as(page, "csv")
    assert name.endswith("matrix-layer-2-head-3")
    rows = table(content)
    assert [int(row["row"]) for row in rows] == list(range(15)) and {row["head"] for row in rows} == {"3"}
    assert float(rows[9]["2 animal"]) == pytest.approx(maps[2, 3, 9, 2].item(), rel=1e-4)
    _, drawing = saved_as(page, "svg")
    assert ">layer 2 · head 3<" in drawing.decode()


def test_the_page_counts_from_0(page, address):
    opened(page, address, "matrix", site=0, head=0, row=0, key=2)
    until(page, "/\\d/.test(document.querySelector('[data-testid=weight]')?.innerText)")
    words = page.inner_text("body")
    assert "layer 0 · head 0" in words and "row 0, column 2" in words
    assert page.get_by_test_id("rail-5-11").get_attribute("aria-label") == "layer 5 · head 11"
    opened(page, address, "overview", sort="entropy")
    until(page, "document.querySelectorAll('.caption').length === 72")
    captions = page.locator(".caption").all_inner_texts()
    assert {text.split(" ")[0] for text in captions} == {f"{layer}.{head}" for layer in range(6) for head in range(12)}


def test_a_saved_comparison_names_both_models(page, page_models):
    opened(page, page_models["unequal"], "compare", site=1, head=1)
    page.get_by_test_id("differs-1-1").wait_for()
    name, content = saved_as(page, "csv")
    assert "-encoder-with" in name and "-minus-classifier-with" in name and name.endswith("layer-1-head-1")
    rows = table(content)
    assert {(row["head"], row["site"]) for row in rows} == {("1", "encoder.layer.1.attention.self")}
    assert (rows[0]["row"], rows[0]["key"]) == ("0", "0") and len(rows) == 49


@pytest.mark.parametrize("view", ["overview", "matrix"])
def test_texts_of_a_saved_figure_are_inside_it(page, page_models, view):
    """Long names of two compared models, and tilted labels."""
    opened(page, page_models["unequal"], view, site=1, head=1, minus=1 if view == "matrix" else "")
    page.wait_for_timeout(300)
    _, drawing = saved_as(page, "svg")
    page.goto("about:blank")
    page.set_content(drawing.decode())
    outside = page.evaluate(
        """() => { const box = document.querySelector('svg').getBoundingClientRect();
            return [...document.querySelectorAll('svg text')].filter(text => { const own = text.getBoundingClientRect();
                return own.left < box.left || own.right > box.right || own.top < box.top || own.bottom > box.bottom;
            }).map(text => text.textContent); }"""
    )
    assert not outside


@pytest.mark.parametrize("view", ["overview", "matrix", "tokens"])
def test_random_weights_are_named_on_the_page_and_in_everything_that_is_saved(page, page_models, view):
    from tests.browser.page_models import WARNING

    opened(page, page_models["doubtful"], view)
    assert page.get_by_test_id("warning").inner_text() == WARNING
    page.wait_for_timeout(300)
    _, drawing = saved_as(page, "svg")
    _, content = saved_as(page, "csv")
    assert {row["warning"] for row in table(content)} == {WARNING}
    page.goto("about:blank")
    page.set_content(drawing.decode())
    words = " ".join(page.locator("svg text").all_text_contents())
    assert WARNING in words and page.locator("svg b").count() == 0


def test_a_model_with_all_its_weights_has_no_warning(page, page_models):
    opened(page, page_models["minilm"], "overview")
    assert page.get_by_test_id("warning").is_hidden()
    _, content = saved_as(page, "csv")
    assert "warning" not in table(content)[0]


def fonts_of(pdf):
    """Names of font objects, kinds of embedded files, and the kinds of fonts in a PDF."""
    text = pdf.decode("latin-1")
    return (
        set(re.findall(r"/BaseFont */([\w+-]+)", text)),
        re.findall(r"/FontFile\d?", text),
        set(re.findall(r"/Subtype */(Type\d|TrueType|CIDFontType\d)", text)),
    )


@pytest.mark.parametrize("where", ["server", "file"])
def test_a_saved_pdf_holds_its_fonts(page, address, where, tmp_path):
    """Publishers refuse fonts that are only named, and Type 3."""
    if where == "server":
        opened(page, address, "matrix", site=2, head=3)
    else:
        path = export(page_models.minilm(), tmp_path / "page.html", room=600_000)
        page.goto(path.as_uri() + "#view=matrix&site=2")
        until(page, "window.__regard && window.__regard.frames && window.__regard.frames().ready")
    page.wait_for_timeout(300)
    _, content = saved_as(page, "pdf")
    names, files, kinds = fonts_of(content)
    assert names == {"REGARD+DejaVuSans", "REGARD+DejaVuSans-Bold"} and files == ["/FontFile2"] * 2
    assert kinds == {"Type0", "CIDFontType2"}
    streams = [
        zlib.decompress(found) for found in re.findall(rb"/FlateDecode.*?stream\n(.*?)\nendstream", content, re.S)
    ]
    maps = [found.decode() for found in streams if found.startswith(b"/CIDInit")]
    letters = {chr(int(code, 16)) for one in maps for code in re.findall(r"<\w{4}> <(\w{4})>", one)}
    assert set("layer2·head3crosttid") <= letters  # the text can be read out again
    assert sum(found[:4] == b"\x00\x01\x00\x00" for found in streams) == 2  # TrueType files
