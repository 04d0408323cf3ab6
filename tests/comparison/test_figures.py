"""Pictures draw the numbers they were given, and the same picture is the same bytes."""

import itertools
import random
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection, PathCollection

from regard_workbench.comparison.comparison import histories
from regard_workbench.comparison.report import bars, cost
from regard_workbench.comparison.report.keys import keys_of
from regard_workbench.comparison.results import rows
from regard_workbench.figures import attention, curves, history, labels, style, svg
from regard_workbench.inspection.attribution import Attribution
from regard_workbench.tasks.measures.metrics import ACCURACY, Metric
from tests.comparison.made_up_runs import made, records


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return made(tmp_path_factory.mktemp("three"))


@pytest.fixture(autouse=True)
def styled():
    with style.style():
        yield


def by_seed(comparison, split="test"):
    found = {}
    for run in comparison.outcomes:
        found.setdefault(run.model, {})[run.seed] = getattr(run, split)["accuracy"]
    return found


def reached(comparison):
    found = rows(comparison)
    return found, keys_of(found), bars.reached(found, keys_of(found), "test", by_seed(comparison))


def line(drawing, group):
    """The one line of a group."""
    (found,) = [one for one in drawing.figure.axes[0].lines if one.get_gid() == group]
    return found


# Histories and curves


def test_the_mean_over_seeds_is_taken_where_all_were_under_way():
    one = history.Series({"step": np.array([0.0, 10, 20])}, np.array([0.0, 10, 20]))
    other = history.Series({"step": np.array([5.0, 15])}, np.array([1.0, 1]))
    band = history.together([one, other], "step")
    assert band.at.tolist() == [5, 10, 15]
    assert band.mean.tolist() == [3.0, 5.5, 8.0]
    assert band.low.tolist() == [1, 1, 1] and band.high.tolist() == [5, 10, 15]
    assert history.together([one, other], "seconds") is None


def test_a_long_loss_is_averaged_in_stretches():
    lines = [{"step": n, "loss": float(n), "seconds": n / 10} for n in range(1, 601)]
    loss = history.history("x", 0, lines).loss
    assert len(loss.values) == history.POINTS
    assert loss.values[0] == pytest.approx(5.5) and loss.at["step"][-1] == pytest.approx(595.5)
    assert "tokens" not in loss.at


def test_non_finite_values_are_left_out_of_a_curve():
    lines = [{"step": 1, "loss": None}, {"step": 2, "loss": 3.0, "validation": {"accuracy": None}}]
    found = history.history("x", 0, lines)
    assert found.loss.values.tolist() == [3.0] and not len(found.validation["accuracy"].values)


def test_a_curve_is_the_mean_of_its_seeds(three):
    runs, keys = histories(three), keys_of(rows(three))
    drawing = curves.curve(runs, keys, ACCURACY, "step")
    for place, key in enumerate(keys.values()):
        expected = [
            [record["validation"]["accuracy"] for record in records(place, seed, 50) if "validation" in record]
            for seed in range(3)
        ]
        drawn = line(drawing, key.group("mean"))
        assert drawn.get_xdata().tolist() == [10, 20, 30, 40, 50]
        assert np.allclose(drawn.get_ydata(), np.mean(expected, 0))
        for seed in range(3):
            assert np.allclose(line(drawing, key.group(f"seed{seed}")).get_ydata(), expected[seed])
    assert "ends at" in drawing.alt and all(key.name in drawing.alt for key in keys.values())


def test_over_seconds_every_contestant_has_its_own_end(three):
    runs, keys = histories(three), keys_of(rows(three))
    drawing = curves.loss_curve(runs, keys, "seconds")
    ends = [line(drawing, key.group("mean")).get_xdata()[-1] for key in keys.values()]
    assert ends == pytest.approx([5.0, 10.0, 15.0])
    tags = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert sorted(tags) == sorted(key.name for key in keys.values())


def test_nothing_measured_is_no_curve(three):
    assert curves.curve(histories(three), keys_of(rows(three)), Metric("bleu"), "step") is None


# Bars


def test_bars_begin_at_zero_and_carry_the_intervals_of_the_rows(three):
    found, _, best_first = reached(three)
    frame = bars.bars(best_first, ACCURACY, "test").figure.axes[0]
    by_label = {row["label"]: row["test"]["accuracy"] for row in found}
    means = sorted((over["mean"] for over in by_label.values()), reverse=True)
    assert [bar.get_x() for bar in frame.patches] == [0, 0, 0]
    assert [bar.get_width() for bar in frame.patches] == pytest.approx(means)
    drawn = [c.get_segments()[0] for c in frame.collections if (c.get_gid() or "").endswith("interval")]
    expected = [[by_label[one.key.label]["low"], by_label[one.key.label]["high"]] for one in best_first]
    assert np.allclose([segment[:, 0] for segment in drawn], expected)
    assert frame.get_xlim()[0] == 0


def test_the_zoomed_view_has_a_dot_for_each_seed(three):
    _, _, best_first = reached(three)
    drawing = bars.closer(best_first, ACCURACY, "test")
    for one in best_first:
        for seed, value in by_seed(three)[one.key.label].items():
            assert line(drawing, one.key.group(f"seed{seed}")).get_xdata() == [value]
            assert f"seed {seed}: {100 * value:.2f} %" in drawing.tips[one.key.group(f"seed{seed}")]
        assert line(drawing, one.key.group("mean")).get_xdata() == [one.mean]


def test_one_seed_has_no_interval(tmp_path):
    _, _, found = reached(made(tmp_path, seeds=1))
    frame = bars.bars(found, ACCURACY, "test").figure.axes[0]
    assert not [one for one in frame.collections if isinstance(one, LineCollection)]


def test_where_less_is_better_the_least_comes_first(three):
    found = rows(three)
    for row in found:
        row |= {"decides": "loss", "higher_is_better": False, "unit": ""}
    order = bars.reached(found, keys_of(found), "test", {})
    assert [one.mean for one in order] == sorted(row["test"]["loss"]["mean"] for row in found)


# Cost


def test_the_pareto_front_equals_a_brute_force_search():
    random.seed(3)
    for _ in range(50):
        points = [(float(random.randrange(6)), float(random.randrange(6))) for _ in range(9)]
        expected = [
            i for i, (x, y) in enumerate(points) if not any((a >= x and b > y) or (a > x and b >= y) for a, b in points)
        ]
        assert cost.front(points) == expected


def test_points_are_drawn_at_cost_and_quality(three):
    found, keys, best_first = reached(three)
    for kind in cost.COST_AXES:
        drawing = cost.against(best_first, found, keys, kind, ACCURACY, "test")
        for row in found:
            dot = line(drawing, keys[row["label"]].group("point"))
            assert dot.get_xdata() == [row[kind.field]]
            assert dot.get_ydata() == [row["test"]["accuracy"]["mean"]]
    speed = drawing.figure.axes[0]
    assert not [one for one in speed.collections if isinstance(one, PathCollection)]


def test_points_off_the_pareto_front_are_hollow(three):
    """With every cost rising from the best to the worst, only the best is beaten by nobody."""
    found, keys, best_first = reached(three)
    drawing = cost.against(best_first, found, keys, cost.COST_AXES[0], ACCURACY, "test")
    filled = {key.name: line(drawing, key.group("point")).get_markerfacecolor() != "none" for key in keys.values()}
    assert filled == {"static-transformer": True, "dynamic-transformer": False, "lstm-attention": False}


def test_costs_that_differ_by_much_are_drawn_logarithmically(three):
    found, keys, best_first = reached(three)
    for row, flops in zip(found, (1e6, 1e9, 1e7), strict=True):
        row["flops_per_step"] = flops
    drawing = cost.against(best_first, found, keys, cost.COST_AXES[1], ACCURACY, "test")
    assert drawing.figure.axes[0].get_xscale() == "log"


def test_without_costs_there_is_no_picture(three):
    found, keys, best_first = reached(three)
    for row in found:
        row["peak_memory_mib"] = None
    assert cost.against(best_first, found, keys, cost.COST_AXES[3], ACCURACY, "test") is None


# Attention


def test_shades_are_the_roots_of_the_weights_by_their_share_of_the_largest():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]])
    heads = torch.stack([weights, weights])
    attribution = Attribution(weights, "attention", heads=heads, rows=["a", "b"], columns=["x", " ", "\n"])
    drawing = attention.picture(attribution, "attention-1-1")
    main, *heads = [frame for part in drawing.figure.subfigs for frame in part.axes]
    assert np.allclose(main.images[0].get_array()[..., 3], weights.sqrt())
    assert [label.get_text() for label in main.get_xticklabels()] == ["x", "␣", "⏎"]
    assert [label.get_text() for label in main.get_yticklabels()] == ["a", "b"]
    assert sum(len(frame.images) for frame in heads) == 2
    titles = [frame.get_title().partition(",")[0] for frame in heads if frame.images]
    assert titles == ["head 0", "head 1"]
    assert "b to" in drawing.alt and "1" in drawing.alt


@pytest.mark.parametrize("length", [8, 64])
def test_over_an_image_rows_and_pixels_get_their_share(length):
    weights = torch.arange(1.0, length + 1)
    names = [f"pixel {n}" for n in range(1, length + 1)]
    attribution = Attribution(weights / weights.sum(), "attention", columns=names)
    drawing = attention.picture(attribution, "a", np.zeros((8, 8)))
    left = drawing.figure.subfigs[0].axes[0]
    shares = [patch.get_alpha() for patch in left.patches]
    assert shares == pytest.approx([0.65 * n / length for n in range(1, length + 1)], abs=0.0051)
    assert {patch.get_width() for patch in left.patches} == {8 if length == 8 else 1}


def test_each_word_that_looked_at_a_grid_of_patches_gets_a_picture_of_its_own():
    weights = torch.zeros(7, 12)
    weights[torch.arange(7), torch.tensor([0, 5, 11, 3, 4, 7, 8])] = 1.0
    words = ["a", "two", "left", "of", "a", "<nine>", "$x$"]
    attribution = Attribution(weights, "where each word looked", rows=words, columns=[str(n) for n in range(12)])
    drawing = attention.picture(attribution, "a", np.full((6, 8), 0.5), (3, 4))
    frames = [frame for frame in drawing.figure.subfigs[0].axes if frame.images]
    assert [frame.get_title() for frame in frames] == words
    for frame, row in zip(frames, weights, strict=True):
        drawn = frame.images[0].get_array()
        coloured = np.ptp(drawn, axis=2) > 0.01  # the picture itself is grey
        expected = np.kron(row.numpy().reshape(3, 4), np.ones((2, 2))) > 0
        assert drawn.shape == (6, 8, 3) and np.array_equal(coloured, expected)
    many = Attribution(torch.rand(25, 12), "patches", rows=[str(n) for n in range(25)], columns=["x"] * 12)
    drawing = attention.picture(many, "a", np.full((6, 8), 0.5), (3, 4))
    assert drawing.figure.subfigs[0].axes[0].get_title() == "the input"  # too many rows: a heat map beside it


# Labels and looks


def test_labels_keep_a_gap_and_stay_in_the_frame():
    random.seed(0)
    for count in (1, 2, 7, 18, 25):
        heights = sorted(random.random() ** 3 for _ in range(count))
        found = labels.apart(heights)
        gap = min(labels.GAP, 1 / max(1, count - 1))
        assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(found))
        assert found[-1] <= 1 + 1e-9 and found[0] >= -1e-9
    assert labels.apart([0.1, 0.5, 0.9]) == [0.1, 0.5, 0.9]


def test_no_two_contestants_look_alike():
    looks = {(key.colour, key.marker) for key in (style.Key(n, "x", "x") for n in range(1, 78))}
    assert len(looks) == 77


def test_contestants_of_one_model_are_called_by_their_attention(tmp_path):
    keys = keys_of(rows(made(tmp_path, 5, 1)))
    assert [key.name for key in keys.values()] == ["additive", "causal", "concat", "dot", "general"]


def test_long_names_lose_their_middle():
    assert style.shortened("a" * 40 + "(layers=4)") == "a" * 20 + "…" + "layers=4)"
    assert style.shortened("two\nlines\0") == "two�lines�"


# As SVG and PDF


def test_a_picture_in_a_page_has_the_colours_of_the_page(three):
    _, _, found = reached(three)
    shown = svg.inline(bars.closer(found, ACCURACY, "test"))
    root = ET.fromstring(shown)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"]
    for colour in (*style.COLOURS, style.INK, style.MUTED, style.GRID):
        assert colour not in shown
    assert "var(--c0)" in shown and "var(--ink)" in shown
    tips = [title.text for title in root.iter("title")]
    assert any(text.startswith("static-transformer, seed 0: ") for text in tips)
    assert {one.attrib["data-key"] for one in root.iter() if "data-key" in one.attrib} == {"1", "2", "3"}


def test_the_same_numbers_give_the_same_bytes(three, tmp_path):
    found, keys, best_first = reached(three)
    made_twice = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        drawing = cost.against(best_first, found, keys, cost.COST_AXES[0], ACCURACY, "test")
        page = svg.publish(drawing, folder, keys)
        made_twice.append((page, *(path.read_bytes() for path in sorted(folder.iterdir()))))
    assert made_twice[0] == made_twice[1]
    assert [path.name for path in sorted(folder.iterdir())] == ["cost-parameters.pdf", "cost-parameters.svg"]
    assert made_twice[0][1].startswith(b"%PDF")


def test_files_of_pictures_with_numbers_carry_a_legend(tmp_path):
    comparison = made(tmp_path / "runs", 5, 1)
    found = rows(comparison)
    keys = keys_of(found)
    drawing = curves.curve(histories(comparison), keys, ACCURACY, "step")
    inside = svg.publish(drawing, tmp_path, keys)
    file = (tmp_path / "validation-accuracy-by-step.svg").read_text()
    assert "general" in file and ">general<" not in inside


@pytest.mark.parametrize("name", ["$x$ & <b>", "注意", "_hidden", "a\u202eb", "‘“’", "{x}"])
def test_any_name_can_be_drawn(name, three, tmp_path):
    found = rows(three)
    found[0]["label"] = name
    keys = keys_of(found)
    best_first = bars.reached(found, keys, "test", {})
    page = svg.publish(bars.bars(best_first, ACCURACY, "test"), tmp_path, keys)
    assert style.shortened(name) in "".join(ET.fromstring(page).itertext())
