"""Pictures of networks as SVG and as text: no wire crosses a box, no text is wider than its box, nothing is missing."""

import functools
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from regard.nn import build, entry, names
from regard.observation import architecture
from regard.observation.architecture import Diagram, DiagramNode, Frame
from regard.observation.architecture.picture import arranged
from regard.observation.architecture.svg import DETAIL, LABEL, MEASURES, TITLE, text_width
from regard_workbench import models
from tests.model_pages import facts_of

SVG = "{http://www.w3.org/2000/svg}"
PLACES = [*(f"models.{name}" for name in models.names()), *(f"mechanisms.{name}" for name in names())]


@functools.cache
def diagram_of(place):
    kind, _, name = place.partition(".")
    if kind == "models":
        return Diagram.from_dict(facts_of(place)["architecture"])
    torch.manual_seed(0)
    return architecture.of_layer(build(name, dim=12, **entry(name).needs))


def inside(segment, rect, margin=0.5):
    """Whether a part of a horizontal or vertical segment lies inside a rectangle."""
    (a, b), (c, d) = segment
    left, right = min(a, c), max(a, c)
    top, bottom = min(b, d), max(b, d)
    across = right > rect.x + margin and left < rect.x + rect.width - margin
    return across and bottom > rect.y + margin and top < rect.y + rect.height - margin


def check_layout(diagram):
    block = arranged(diagram, MEASURES)
    boxes = [rect for rect in block.rects if isinstance(rect.thing, DiagramNode)]
    assert {rect.thing for rect in boxes} == set(diagram.root.nodes())
    for wire in block.wires:
        for start, end in zip(wire.points, wire.points[1:], strict=False):
            assert start[0] == end[0] or start[1] == end[1], "wires run across or down"
            crossed = [rect.thing.label for rect in boxes if inside((start, end), rect)]
            assert not crossed, f"a wire from {wire.source.label} crosses {crossed}"
    for number, rect in enumerate(boxes):
        for other in boxes[number + 1 :]:
            apart = (
                rect.x + rect.width <= other.x
                or other.x + other.width <= rect.x
                or rect.y + rect.height <= other.y
                or other.y + other.height <= rect.y
            )
            assert apart, f"{rect.thing.label} lies on {other.thing.label}"
    for rect in block.rects:
        assert (
            rect.x >= 0 and rect.y >= 0 and rect.x + rect.width <= block.right and rect.y + rect.height <= block.height
        )
        if isinstance(rect.thing, Frame):
            held = [box for box in boxes if box.thing in rect.thing.nodes()]
            assert all(rect.x < box.x and box.x + box.width < rect.x + rect.width for box in held)
            assert all(rect.y < box.y and box.y + box.height < rect.y + rect.height for box in held)
    place = {rect.thing: rect for rect in boxes}
    for edge in diagram.edges:
        arrows = [w.points[-1] for w in block.wires if w.arrow and w.source is edge.source and w.back == edge.back]
        rect = place[edge.target]
        assert any(
            rect.x - 0.5 <= x <= rect.x + rect.width + 0.5 and rect.y - 0.5 <= y <= rect.y + rect.height + 0.5
            for x, y in arrows
        ), f"no arrow from {edge.source.label} to {edge.target.label}"


@pytest.mark.parametrize("place", PLACES)
def test_no_wire_crosses_a_box_and_every_edge_has_its_arrow(place):
    check_layout(diagram_of(place))


@pytest.mark.parametrize("place", PLACES)
def test_the_svg_is_well_formed_and_its_texts_fit(place):
    diagram = diagram_of(place)
    root = ET.fromstring(architecture.svg(diagram, "built for a test"))
    assert root.find(f"{SVG}title").text == diagram.root.label
    assert diagram.root.nodes()[-1].label in root.find(f"{SVG}desc").text
    width, height = (float(root.get(side)) for side in ("width", "height"))
    shown = set()
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        if group.get("class") in ("box", "frame"):
            for text in group.findall(f"{SVG}text"):
                size = float(text.get("font-size"))
                assert size in (LABEL, DETAIL, TITLE)
                assert text_width(text.text, size, size == TITLE) <= float(rect.get("width")), text.text
                shown.add(text.text)
            assert float(rect.get("x")) >= 0 and float(rect.get("x")) + float(rect.get("width")) <= width
            assert float(rect.get("y")) >= 0 and float(rect.get("y")) + float(rect.get("height")) <= height
    assert {node.label for node in diagram.root.nodes() if node.kind in ("attention", "map", "norm")} <= shown


@pytest.mark.parametrize("width", [40, 78, 118])
@pytest.mark.parametrize("place", PLACES)
def test_the_text_keeps_to_its_width_and_names_every_part(place, width):
    diagram = diagram_of(place)
    lines = architecture.text(diagram, width)
    assert max(map(len, lines)) <= width
    shown = " ".join(lines)
    for node in diagram.root.nodes():
        assert node.kind in "+×∥·" or node.label[:12] in shown


def test_encoder_and_decoder_stand_side_by_side_where_there_is_room():
    diagram = diagram_of("models.transformer")
    lines = architecture.text(diagram, 78)
    assert any("encoder" in line and "decoder" in line for line in lines)
    assert any("feed-forward" in line and "cross-attention" in line for line in lines)
    (crossing,) = [line for line in lines if "▶" in line]
    assert "multihead" in crossing[crossing.index("▶") :], "the arrow enters the cross-attention"
    narrow = architecture.text(diagram, 40)
    assert len(narrow) > 0 and not any("encoder" in line and "decoder" in line for line in narrow)


def test_long_names_are_cut():
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.a_name_that_no_box_of_any_width_that_fits_on_a_page_would_ever_hold = nn.Linear(5, 7)

        def forward(self, x):
            return self.a_name_that_no_box_of_any_width_that_fits_on_a_page_would_ever_hold(x)

    diagram = architecture.of_module(Long(), torch.randn(2, 5))
    check_layout(diagram)
    root = ET.fromstring(architecture.svg(diagram))
    (label,) = [text.text for text in root.iter(f"{SVG}text") if (text.text or "").startswith("a name")]
    assert label.endswith("…") and max(map(len, architecture.text(diagram, 40))) <= 40


class Tangle(nn.Module):
    """Every map reads all that came before it."""

    def __init__(self, count):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(4 * (number + 1), 4) for number in range(count))

    def forward(self, x):
        found = [x]
        for one in self.maps:
            found.append(one(torch.cat(found, -1)))
        return torch.cat(found, -1)


def test_wires_of_a_tangle_cross_no_box():
    diagram = architecture.of_module(Tangle(6), torch.randn(2, 4))
    assert sum(node.parameters for node in diagram.root.nodes()) == sum(4 * 4 * n + 4 for n in range(1, 7))
    check_layout(diagram)
