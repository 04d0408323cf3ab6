"""Pictures of networks: what feeds what is that of the modules, residuals where they are, equal layers once."""

import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from regard import models, tasks
from regard.models import Model
from regard.nn import build
from regard.observation import architecture
from regard.observation.architecture import Diagram, Frame


def drawn(name, task="digits", **options):
    torch.manual_seed(0)
    made = tasks.build(task)
    problem = models.problem_for(name, made.problems())
    made.pose(problem)
    batch = made.collate([made.examples("train")[index] for index in range(2)], torch.Generator())
    return architecture.of_model(models.build(name, problem, **options), batch)


def edges(diagram):
    return {(edge.source.path, edge.target.path, edge.target.kind) for edge in diagram.edges}


def signs(diagram):
    return [node.path for node in diagram.root.nodes() if node.kind == "+"]


def test_the_encoder_has_a_residual_around_each_part_and_draws_equal_layers_once():
    diagram = drawn("encoder", dim=12, layers=3, num_heads=2)
    stack = next(child for child in diagram.root.children if child.label == "stack")
    layer = stack.children[0]
    assert isinstance(layer, Frame) and layer.repeat == 3
    assert [node.label for node in layer.nodes()] == [
        "layer norm", "multihead", "sum", "layer norm", "feed forward", "sum",
    ]  # fmt: skip
    norm, attention, first, again, forward, second = layer.nodes()
    fed = {(edge.source, edge.target) for edge in diagram.edges}
    assert {(norm, attention), (attention, first), (first, again), (again, forward), (forward, second)} <= fed
    assert (first, second) in fed, "the second residual starts behind the first sum"
    assert attention.detail == "2 heads of 6" and forward.detail == "12 → 48 → 12"


def test_layers_that_differ_are_drawn_apart():
    """A picture is made from the modules: change one, and it shows."""
    made = tasks.build("digits")
    problem = models.problem_for("encoder", made.problems())
    made.pose(problem)
    model = models.build("encoder", problem, dim=12, layers=3, num_heads=2)
    model.stack.layers[1].attention = build("linear", 12, num_heads=2)
    batch = made.collate([made.examples("train")[0]], torch.Generator())
    stack = next(c for c in architecture.of_model(model, batch).root.children if c.label == "stack")
    assert [child.repeat for child in stack.children if isinstance(child, Frame)] == [1, 1, 1]
    assert [child.nodes()[1].label for child in stack.children[:3]] == ["multihead", "linear", "multihead"]


class Plain(Model):
    """Two linear maps, with or without a sum around the second."""

    def __init__(self, problem, residual):
        super().__init__(problem)
        self.residual = residual
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = problem.answer.head(8)

    def forward(self, batch):
        rows = self.first(batch.inputs)
        again = self.second(rows)
        return self.head((rows + again if self.residual else again).mean(1), batch)


@pytest.mark.parametrize("residual", [True, False])
def test_a_sum_is_drawn_exactly_where_two_outputs_are_added(residual):
    made = tasks.build("digits")
    batch = made.collate([made.examples("train")[0]], torch.Generator())
    diagram = architecture.of_model(Plain(made.problem, residual), batch)
    assert len(signs(diagram)) == int(residual)
    labels = [node.label for node in diagram.root.nodes()]
    middle = ["sum"] if residual else []
    assert labels == ["first", "second", *middle, "head", made.problem.answer.words]


def test_the_decoder_reads_the_encoder_and_stands_beside_it():
    diagram = drawn("transformer", "dates", dim=8, layers=2, num_heads=2)
    assert ("encoder.norm", "decoder.layers.0.cross", "attention") in edges(diagram)
    lines = architecture.text(diagram, 100)
    assert any("encoder layer × 2" in line and "decoder layer × 2" in line for line in lines)
    assert any("← encoder" in line for line in lines) and all(len(line) <= 100 for line in lines)
    narrow = architecture.text(diagram, 40)
    assert all(len(line) <= 40 for line in narrow) and len(narrow) > len(lines)


def test_a_module_that_runs_for_each_segment_is_drawn_once():
    labels = [
        node.label for node in drawn("transformer-xl", "language", dim=8, layers=2, num_heads=2).root.nodes()
    ]
    assert labels.count("relative") == 1 and labels.count("sum") == 2


def test_weights_that_are_used_without_a_call_are_shown_as_such():
    loose = {node.label: node.detail for node in drawn("ntm", "copy").root.nodes() if node.loose}
    assert "heads" in loose


def test_the_inside_of_multihead_attention_is_its_three_maps_attend_and_the_output():
    diagram = architecture.of_layer(build("multihead", 12, num_heads=3))
    nodes = {node.label: node for node in diagram.root.nodes()}
    fed = {(edge.source.label, edge.target.label) for edge in diagram.edges}
    assert fed == {
        ("query map", "attend"), ("key map", "attend"), ("value map", "attend"), ("attend", "output map"),
        ("output map", "rows"),
    }  # fmt: skip
    assert nodes["attend"].detail == "scaled-dot, softmax"
    assert [nodes[name].given for name in ("query map", "key map", "value map", "attend")] == ["rows"] * 3 + [
        ""
    ]


def test_data_svg_and_mode_survive():
    made = tasks.build("digits")
    problem = models.problem_for("encoder", made.problems())
    made.pose(problem)
    model = models.build("encoder", problem, dim=8, layers=1, num_heads=2).train()
    batch = made.collate([made.examples("train")[0]], torch.Generator())
    diagram = architecture.of_model(model, batch)
    assert all(part.training for part in model.modules()) and not any(
        p.grad is not None for p in model.parameters()
    )
    again = Diagram.from_dict(diagram.to_dict())
    assert again.to_dict() == diagram.to_dict()
    assert architecture.svg(again) == architecture.svg(diagram)
    root = ET.fromstring(architecture.svg(diagram))
    shown = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"multihead", "feed forward", "layer norm", "inputs"} <= shown
    width, height = (float(root.get(side)) for side in ("width", "height"))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if box.get("x") is not None:
            assert float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= width
            assert float(box.get("y")) >= 0 and float(box.get("y")) + float(box.get("height")) <= height
