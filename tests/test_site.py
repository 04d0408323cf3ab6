"""What the site makes by itself: formulas, pictures, pages of mechanisms, links. `make check` builds all of it."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import regard
from regard_workbench.cli.common import docstring

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "docs")]
try:
    import api_pages
    import heatmap
    import mathml
    import mechanism_pages
    import repository
finally:
    del sys.path[:2]

by_name = pytest.mark.parametrize("name", regard.nn.names())
RAISED = str.maketrans({"²": "2", "¹": "1", "ᵀ": "T", "ʰ": "h", "Σ": "∑", "Π": "∏", "'": "′"})
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def formulas(name):
    return [text for kind, text in docstring.read(regard.nn.entry(name).layer).body if kind == "formula"]


def shape(element):
    """A MathML tree as nested lists of tags and texts, without spaces and attributes."""
    tag = element.tag.rpartition("}")[2]
    inside = [shape(child) for child in element if not child.tag.endswith("mspace")]
    return [tag, *inside] if inside else f"{tag} {element.text}"


def test_a_formula_becomes_the_tree_that_its_notation_means():
    found = shape(ElementTree.fromstring(mathml.math("a_ij = softmax_j(q_i·k_j / √d)")))
    assert found == [
        "math",
        ["msub", "mi a", ["mrow", "mi i", "mi j"]],
        "mo =",
        ["msub", "mi softmax", ["mrow", "mi j"]],
        [
            "mrow",
            "mo (",
            [
                "mfrac",
                ["mrow", ["msub", "mi q", ["mrow", "mi i"]], "mo ·", ["msub", "mi k", ["mrow", "mi j"]]],
                ["mrow", ["msqrt", "mi d"]],
            ],
            "mo )",
        ],
    ]


@pytest.mark.parametrize(
    ("text", "above", "below"),
    [
        ("e = x / y − z", "x", "y"),
        ("1 − x / 2σ²", "x", "2σ2"),
        ("f(x) g / h(y) k,  z", "f(x)g", "h(y)k"),
        ("softmax over j of q·k / d", "q·k", "d"),
        ("(a + b) / c", "(a+b)", "c"),
    ],
)
def test_a_fraction_takes_the_terms_on_its_two_sides(text, above, below):
    fraction = ElementTree.fromstring(mathml.math(text)).find(".//{*}mfrac")
    assert ["".join(part.itertext()).replace(" ", "") for part in fraction] == [above, below]


@by_name
def test_every_sign_of_a_formula_is_drawn_in_its_order(name):
    """Only what MathML draws as structure is gone: underscores, braces, roots, fraction bars."""
    for text in formulas(name):
        drawn = "".join(ElementTree.fromstring(mathml.block(text)).itertext())
        written = re.sub(r"(?<=\s)/(?=\s)|[_{}√\s]", "", text).translate(RAISED)
        # A numerator is written before the bar and a denominator behind it, so the order of all signs is kept.
        assert re.sub(r"\s", "", drawn) == written


@pytest.mark.parametrize("text", ["f(x", "[a; b", "x_{j"])
def test_a_formula_with_an_open_bracket_is_refused(text):
    with pytest.raises(ValueError, match="nothing closes"):
        mathml.math(text)


def test_a_cell_is_as_opaque_as_its_share_of_the_largest_weight():
    drawn = ElementTree.fromstring(heatmap.svg([[[0.0, 0.5], [0.25, 0.125]]], "a query", "a key"))
    cells = [cell for cell in drawn.findall(".//{*}rect") if "fill-opacity" in cell.attrib]
    assert [float(cell.get("fill-opacity")) for cell in cells] == [1.0, 0.5, 0.25]
    assert len({(cell.get("x"), cell.get("y")) for cell in cells}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local-p", "hard", "ntm"])
def test_the_page_of_a_mechanism_has_all_its_parts(name):
    found = mechanism_pages.show.of_mechanism(regard.nn.entry(name), {})
    page = mechanism_pages.page(found)
    doc = docstring.read(regard.nn.entry(name).layer)
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings == [
        "Formula",
        "When to use it",
        "Picture",
        "Cost",
        "Options",
        "A query that sees nothing",
        "Example",
        "Paper",
    ]
    assert "<math" in page and "<svg" in page and f"({name}.svg)" in page
    assert regard.nn.entry(name).time in page
    assert doc.labelled["When to use"][-40:].replace("_", "\\_") in page
    assert doc.example in page
    assert all(f"`{option}`" in page for option in doc.options)


def test_the_index_lists_every_mechanism_once():
    index = mechanism_pages.index()
    assert sorted(re.findall(r"\(([\w-]+)\.md\)", index)) == sorted(regard.nn.names())


def test_the_api_pages_show_everything_that_a_public_module_offers():
    for module, path in (("regard.masks", "regard.masks.causal"), ("regard.nn", "regard.nn.local_p.LocalP")):
        assert f"::: {path}\n" in api_pages.page(module)
    shown = {name for names in api_pages.MODULES.values() if names for name in names}
    modules = {name.removeprefix("regard.") for name in api_pages.MODULES}
    left = {name for name in regard.__all__ if not name.startswith("__")} - shown - modules
    assert left <= {"observation"}, f"say in api_pages.MODULES where {left} are shown"


@pytest.mark.parametrize(
    ("page", "text", "moved"),
    [
        ("docs/adding.md", "[a](../examples/own.py)", "[a](files/examples/own.py.md)"),
        ("docs/adding.md", "[a](../CONTRIBUTING.md#rules)", "[a](contributing.md#rules)"),
        ("docs/adding.md", "[a](promises.md#4-sizes-of-zero-work)", "[a](promises.md#4-sizes-of-zero-work)"),
        ("README.md", "![a](docs/images/report.png)", "![a](images/report.png)"),
        ("README.md", "[a](docs/tutorial.zh.md)", "[a](tutorial.zh.md)"),
        ("docs/attention-by-hand.md", "[a](by_hand.py)", "[a](files/docs/by_hand.py.md)"),
        ("docs/adding.md", "[a](no-such-page.md)", "[a](no-such-page.md)"),
        ("docs/causes.md", "[a](https://example.org/x)", "[a](https://example.org/x)"),
        ("docs/adding.md", "```text\n[a](../README.md)\n```", "```text\n[a](../README.md)\n```"),
    ],
)
def test_a_link_of_the_repository_becomes_one_of_the_site(page, text, moved):
    assert repository.for_site(text, page) == moved


def test_a_list_begins_after_a_paragraph_as_on_github():
    text = "Two things:\n- one\n- two\n  and a half\n\nAfter\n"
    assert repository.for_site(text, "docs/x.md") == "Two things:\n\n- one\n- two\n  and a half\n\nAfter\n"


def test_bars_in_code_inside_tables_lose_their_escape():
    assert repository.plain_bars("| `a \\| b` | x \\| y |") == "| `a | b` | x \\| y |"


@pytest.mark.parametrize("page", [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in PAGES])
def test_no_page_loads_a_picture_from_another_host(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"!\[[^\]]*\]\((?:https?:)?//", text)
    assert not re.findall(r"<(?:script|img|iframe|link)\b", text)
