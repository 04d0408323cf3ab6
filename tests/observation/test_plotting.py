"""Figures of attention: the weights in them, labels that are only text, sizes for a paper, pictures of long maps."""

import ast
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import rgb_to_hsv

from regard.errors import BadValue
from regard.observation import plotting
from regard.observation.colours import BAD, diverging, norm, ramp
from regard.observation.figure_text import MISSING, readable, thinned
from tests.observation.maps import Map, Maps, soft

SOURCES = Path(__file__).resolve().parents[2] / "src"
HOSTILE = [
    "$x^2$",
    "\\frac{1}{2}",
    "a_b",
    "new\nline",
    "שלום",
    "مرحبا",
    "\u202egnp.exe",
    "<script>alert(1)</script>",
    "",
    " ",
    "日本語",
    "\x00\x1b[31m",
    "x" * 10_000,
    "e\u0301",
    "$",
    "%s {0}",
    "\U0001f600",
]


def maps_in(figure):
    """The frames that hold a map."""
    return [frame for frame in figure.axes if frame.images]


def saved(figure, kind):
    file = io.BytesIO()
    figure.savefig(file, format=kind)
    return file.getvalue()


def test_the_heads_of_a_site_are_drawn_with_their_own_weights_in_one_scale():
    weights = soft(2, 5, 7, 11, sharp=2.0)
    seen = Maps(Map(soft(1, 2, 3, 3), name="a"), Map(weights, name="b"))
    figure = plotting.plot(seen, "b", heads=[4, 1], batch=1)
    frames = maps_in(figure)
    assert [frame.get_title() for frame in frames] == ["head 4", "head 1"]
    for frame, head in zip(frames, (4, 1), strict=True):
        (drawn,) = frame.images
        assert np.array_equal(drawn.get_array(), weights[1, head].numpy())
        assert drawn.norm.vmin == 0
        assert drawn.norm.vmax == pytest.approx(float(weights[1, [4, 1]].max()))
    assert figure.get_suptitle() == "b"


def test_without_a_site_all_heads_of_all_sites_are_drawn():
    seen = Maps(*(Map(soft(1, heads, 7, 7), name=f"encoder.{i}.self") for i, heads in enumerate((3, 2))))
    (frame,) = maps_in(plotting.plot(seen))
    given = [table.numpy() for name in seen.names() for table in seen[name].given[0][0]]
    assert len(frame.images) == 5
    assert all(np.array_equal(a.get_array(), b) for a, b in zip(frame.images, given, strict=True))
    assert [label.get_text() for label in frame.get_yticklabels()] == ["encoder.0", "encoder.1"]
    assert [label.get_text() for label in frame.get_xticklabels()] == ["0", "1", "2"]


def test_one_site_may_be_given_itself_and_one_head_as_a_number():
    figure = plotting.plot(Map(soft(1, 3, 5, 5), name="only"), heads=2)
    (frame,) = maps_in(figure)
    assert frame.get_title() == "only, head 2"


@pytest.mark.slow
def test_any_text_is_drawn_as_text_and_nothing_else():
    count = len(HOSTILE)
    figure = plotting.plot(Map(soft(1, 1, count, count), name="$\\alpha_x$"), tokens=HOSTILE)
    (frame,) = maps_in(figure)
    labels = [label.get_text() for label in frame.get_xticklabels()]
    assert labels == [label.get_text() for label in frame.get_yticklabels()]
    assert labels[:4] == ["$x^2$", "\\frac{1}{2}", "a_b", "new⏎line"]
    assert labels[8:10] == ["·", "␣"]
    assert labels[6] == f"{MISSING}gnp.exe"  # no text turns the others round
    assert all(len(label) <= 14 and label.isprintable() for label in labels)
    assert not any(text.get_parse_math() for text in [*frame.get_xticklabels(), *frame.get_yticklabels(), frame.title])
    for kind in ("png", "svg", "pdf"):  # every letter can be drawn: a missing one would warn, and warnings are errors
        assert len(saved(figure, kind)) > 1000


def test_users_own_settings_do_not_reach_the_figure_nor_the_figure_them():
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True, "font.size": 40, "image.cmap": "gray"}):
        figure = plotting.plot(Map(soft(1, 1, 5, 5)), tokens=["$a", "b_", "c", "d", "e"])
        assert matplotlib.rcParams["font.size"] == 40
        assert len(saved(figure, "pdf")) > 1000
    (frame,) = maps_in(figure)
    assert frame.images[0].get_cmap().name == "regard"
    assert frame.title.get_fontsize() == 7


@pytest.mark.parametrize(("width", "heads"), [(plotting.ONE_COLUMN, 1), (plotting.TWO_COLUMNS, 7), (2.3, 4)])
def test_a_figure_is_as_wide_as_asked_and_no_higher_than_what_is_in_it(width, heads):
    tokens = [f"token{i}" for i in range(17)]
    figure = plotting.plot(Map(soft(1, heads, 17, 17)), tokens=tokens, width=width)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == width
    box = figure.get_tightbbox()
    assert box.x0 >= -0.01 and box.x1 <= width + 0.01 and box.y0 >= -0.01
    assert figure.get_figheight() - box.height < 0.25
    letters = [
        text.get_window_extent()
        for frame in figure.axes
        for text in (*frame.get_xticklabels(), *frame.get_yticklabels(), frame.title, frame.yaxis.label)
        if text.get_text()
    ]
    aside = [text for text in (figure._supxlabel, figure._supylabel, figure._suptitle) if text]
    assert not any(text.get_window_extent().overlaps(other) for text in aside for other in letters)
    frames = [frame.get_window_extent() for frame in maps_in(figure)]
    assert all(abs(frame.width / frame.height - 1) < 0.02 for frame in frames)  # square maps stay square


@pytest.mark.parametrize("width", [2.3, plotting.ONE_COLUMN, plotting.TWO_COLUMNS])
@pytest.mark.parametrize("heads", [[4], [0, 4]])
@pytest.mark.parametrize(
    "name", ["a_rather_long_wrapper.with_another_level_below_it.encoder.layer.3.attention.self", "x" * 99]
)
def test_titles_of_long_names_lie_inside_the_figure_and_end_with_the_layer(width, heads, name):
    figure = plotting.plot(Map(soft(1, 5, 7, 7), name=name), heads=heads, tokens=list("abcdefg"), width=width)
    figure.draw_without_rendering()
    titles = [frame.title for frame in maps_in(figure)]
    titles += [figure._suptitle] if figure._suptitle else []
    for title in titles:
        box = title.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 + 1, title.get_text()
    told = "".join(title.get_text() for title in titles).replace("\n", "")
    assert name[-30:] in told and "head 4" in told


def test_the_steps_of_a_generation_are_drawn_as_one_map():
    weights = soft(1, 2, 7, 7, causal=True)
    site = Map(weights[:, :, :3, :3], *(weights[:, :, i : i + 1, : i + 1] for i in range(3, 7)), name="a")
    for figure in (plotting.plot(site, heads=[1], call=None), plotting.plot(Maps(site), heads=[1], call=None)):
        (frame,) = maps_in(figure)
        assert np.array_equal(frame.images[0].get_array(), weights[0, 1].numpy())
    assert plotting.image(site, 0, size=70, call=None) == plotting.image(Map(weights), 0, size=70)


def test_long_lists_of_tokens_are_thinned_and_stay_beside_their_positions():
    count = 211
    figure = plotting.plot(Map(soft(1, 1, count, count)), tokens=[f"t{i}" for i in range(count)])
    (frame,) = maps_in(figure)
    places = list(frame.get_xticks())
    assert 15 < len(places) < 70
    assert [label.get_text() for label in frame.get_xticklabels()] == [f"t{place:.0f}" for place in places]
    assert [place for place, _ in thinned("abcdefg", 3)] == [0, 3, 6]


def test_the_rows_of_a_step_are_the_last_tokens_and_targets_name_them_otherwise():
    site = Map(soft(1, 1, 2, 5))
    (frame,) = maps_in(plotting.plot(site, tokens=list("abcde")))
    assert [label.get_text() for label in frame.get_yticklabels()] == ["d", "e"]
    (frame,) = maps_in(plotting.plot(site, tokens=list("abcde"), targets=["x", "y"]))
    assert [label.get_text() for label in frame.get_yticklabels()] == ["x", "y"]


@pytest.mark.parametrize("scale", ["root", "linear", "log"])
def test_the_colour_bar_has_numbers_that_end_in_the_largest_weight(scale):
    weights = soft(1, 2, 7, 7, causal=True, sharp=3.0)
    figure = plotting.plot(Map(weights), scale=scale)
    figure.draw_without_rendering()
    bar = figure.axes[-1]
    numbers = [float(label.get_text()) for label in bar.get_yticklabels()]
    assert numbers == sorted(numbers) and len(numbers) >= 3
    assert numbers[-1] == pytest.approx(float(weights.max()), rel=0.05)
    assert bar.get_ylabel() == "weight"
    fixed = plotting.plot(Map(weights), scale=scale, largest=0.5)
    assert maps_in(fixed)[0].images[0].norm.vmax == 0.5


def test_small_weights_have_numbers_too_and_positions_are_counted_in_round_steps():
    figure = plotting.plot(Map(torch.full((1, 1, 401, 401), 1 / 401)))
    figure.draw_without_rendering()
    numbers = [float(label.get_text()) for label in figure.axes[-1].get_yticklabels()]
    assert len(numbers) >= 4 and numbers[-1] == pytest.approx(1 / 401, rel=0.05)
    assert list(maps_in(figure)[0].get_xticks()) == [0, 100, 200, 300, 400]


def test_long_maps_are_pooled_and_the_figure_says_so():
    site = Map(torch.zeros(1, 1, 1201, 1201))
    site.given[0][0, 0, 700, 11] = 0.8
    figure = plotting.plot(site)
    (frame,) = maps_in(figure)
    table = frame.images[0].get_array()
    assert table.shape == (512, 512)
    assert float(table.max()) == pytest.approx(0.8)
    assert figure.axes[-1].get_ylabel() == "largest weight of a cell"
    assert frame.get_xlim() == (-0.5, 1200.5)


@pytest.mark.slow
def test_weights_that_are_not_numbers_and_empty_maps_can_be_drawn():
    spoilt = soft(1, 2, 5, 5)
    spoilt[0, 0, 2] = torch.nan
    for weights in (spoilt, torch.zeros(1, 1, 0, 5), torch.zeros(1, 1, 5, 0), torch.zeros(1, 2, 3, 3)):
        for scale in ("root", "log"):
            assert plotting.image(Map(weights), scale=scale).size
        assert saved(plotting.plot(Map(weights), scale="log"), "png")
    pixels = np.asarray(plotting.image(Map(spoilt), 0, size=5))
    assert "#" + bytes(pixels[2, 3].tolist()).hex() == BAD
    wide = saved(plotting.plot(Map(soft(1, 2, 1, 101)), tokens=["a"] * 101), "png")  # a step: a single row
    assert wide


def test_an_image_has_one_pixel_for_each_weight_or_more():
    weights = soft(1, 3, 7, 11, sharp=2.0)
    pixels = np.asarray(plotting.image(Map(weights), 1, size=110))
    assert pixels.shape == (70, 110, 3)
    shades = norm("root", float(weights[0, 1].max()))
    expected = (ramp()(shades(weights[0, 1].numpy()))[..., :3] * 255).round()
    assert np.array_equal(pixels[5::10, 5::10], expected)
    grid = plotting.image(Map(weights), size=256)
    assert max(grid.size) <= 256
    assert plotting.image(Map(soft(1, 1, 1201, 1201)), 0, size=128).size == (128, 128)


def test_the_ramp_gets_evenly_darker_and_nothing_is_white():
    colours = ramp()(np.linspace(0, 1, 256))[:, :3]
    grey = colours @ [0.2126, 0.7152, 0.0722]
    assert bool((np.diff(grey) < 0).all())
    assert rgb_to_hsv(colours)[:, 2].min() > 0.2
    # Exactly zero is paper on a logarithmic scale, where it has no place.
    figure = plotting.plot(Map(torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])), scale="log")
    (drawn,) = maps_in(figure)[0].images
    assert drawn.to_rgba(drawn.get_array())[0, 1].tolist() == [1, 1, 1, 1]


def test_what_cannot_be_drawn_is_refused_in_words():
    seen = Maps(Map(soft(1, 3, 5, 5), name="layer"))
    with pytest.raises(BadValue, match="Did you mean 'layer'"):
        plotting.plot(seen, "layr")
    with pytest.raises(BadValue, match="heads: expected numbers below 3, got"):
        plotting.plot(seen, "layer", heads=[3])
    with pytest.raises(BadValue, match="tokens: expected one for each of 5 positions, got 2"):
        plotting.plot(seen, "layer", tokens=["a", "b"])
    with pytest.raises(BadValue, match="Did you mean 'root'"):
        plotting.plot(seen, "layer", scale="rot")
    with pytest.raises(BadValue, match="width"):
        plotting.plot(seen, "layer", width=0)
    with pytest.raises(BadValue, match="at least one site"):
        plotting.plot(Maps())
    with pytest.raises(BadValue, match="heads"):
        plotting.image(seen["layer"], 7)


def test_pieces_that_can_be_seen():
    assert readable("Ġthe") == "Ġthe"
    assert readable(" \n") == "␣⏎"
    assert readable("e\u0301") == "é"
    assert readable("a\u200bb") == f"a{MISSING}b"
    assert readable("x" * 99) == "x" * 13 + "…"


def test_a_pdf_holds_its_fonts_as_truetype():
    """Publishers refuse Type 3, matplotlib's usual form; the settings at the time of saving do not matter."""
    pdf = saved(plotting.plot(Map(soft(1, 2, 5, 5), name="only")), "pdf")
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf and b"/Subtype /Type3" not in pdf


def test_every_figure_is_one_whose_pdf_a_paper_takes():
    """matplotlib's own class is never built: `PaperFigure` is the only place that says how fonts are embedded."""
    built = []
    for path in SOURCES.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = any(
            isinstance(node, ast.ImportFrom) and node.module == "matplotlib.figure" for node in ast.walk(tree)
        )
        built += [
            f"{path.name}:{node.lineno}"
            for node in ast.walk(tree)
            if imported and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Figure"
        ]
    assert not built


def test_what_helps_is_orange_and_what_hurts_is_blue_in_figures_and_on_the_page():
    low, high = (diverging()(end)[:3] for end in (0.0, 1.0))
    assert low[2] > low[0] and high[0] > high[2]  # red, green, blue
    page = (SOURCES / "regard_workbench" / "viewer" / "page" / "palette.js").read_text(encoding="utf-8")
    light = re.search(r"DIVERGING = \{\s*light: .*?plus: \[(.*?)\]\], minus: \[(.*?)\]\]", page, re.S)
    plus, minus = (
        [float(stop.split(",")[2]) for stop in re.findall(r"\[?([\d., ]+)\]?", side) if stop.count(",") > 1]
        for side in light.groups()
    )
    assert max(plus) < 90 and min(minus) > 200  # hues: orange, blue
