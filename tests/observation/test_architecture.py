"""Pictures of networks: what feeds what is that of the modules, loops are loops, every parameter is in one box."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from regard.nn import build, entry, names
from regard.observation import architecture
from regard.observation.architecture import Diagram, DiagramNode, Frame
from regard.observation.architecture.diagram import frames
from regard.observation.architecture.labels import words
from regard_workbench import models, tasks
from regard_workbench.inspection.architecture import of_model
from tests.model_pages import facts_of


def drawn(name, task, **options):
    torch.manual_seed(0)
    made = tasks.build(task)
    problem = models.problem_for(name, made.problems())
    made.pose(problem)
    model = models.build(name, problem, **options)
    batch = made.batch(made.examples("train"), range(2), torch.Generator(), model)
    return of_model(model, batch), model


def fed(diagram, label, back=False):
    """The labels of what feeds the nodes with a label."""
    return {edge.source.label for edge in diagram.edges if edge.target.label == label and edge.back is back}


def labels(diagram):
    return [node.label for node in diagram.root.nodes()]


def frame_of(diagram, label):
    return next(frame for frame in frames(diagram.root) if frame.label == label or frame.loop == label)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_cross_attention_reads_the_encoder_and_the_decoder():
    diagram, _ = drawn("transformer", "dates", dim=8, layers=3, num_heads=2)
    cross = next(node for node in diagram.root.nodes() if node.label == "cross-attention")
    sources = {edge.source.path for edge in diagram.edges if edge.target is cross}
    assert sources == {"encoder.norm", "decoder.layers.0.around_cross.norm"}
    first = next(node for node in frame_of(diagram, "encoder").nodes() if node.label == "layer norm")
    (before,) = [edge.source for edge in diagram.edges if edge.target is first]
    assert before.path == "embedding.positions"
    assert fed(diagram, "embedding") == {"inputs"} and fed(diagram, "target embedding") == {"targets so far"}
    assert fed(diagram, "the next target token") == {"head"}


def test_each_part_of_a_layer_has_its_residual_and_equal_layers_are_drawn_once():
    diagram, model = drawn("encoder", "digits", dim=12, layers=3, num_heads=2)
    layer = frame_of(diagram, "layer")
    assert layer.repeat == 3
    norm, attention, first, again, forward, second = layer.nodes()
    assert [node.label for node in layer.nodes()] == [
        "layer norm",
        "self-attention",
        "sum",
        "layer norm",
        "feed-forward",
        "sum",
    ]
    inside = {(edge.source, edge.target) for edge in diagram.edges if {edge.source, edge.target} <= set(layer.nodes())}
    assert inside == {
        (norm, attention),
        (attention, first),
        (first, again),
        (again, forward),
        (forward, second),
        (first, second),
    }
    assert {edge.target for edge in diagram.edges if edge.source.path == "embedding.positions"} == {norm, first}
    assert attention.detail == "multihead, 2 heads × 6" and forward.detail == "12 → 48 → 12"
    assert forward.parameters == 12 * 48 + 48 + 48 * 12 + 12
    assert diagram.parameters == count(model)


def test_layers_that_differ_are_drawn_apart():
    made = tasks.build("digits")
    problem = models.problem_for("encoder", made.problems())
    made.pose(problem)
    model = models.build("encoder", problem, dim=12, layers=3, num_heads=2)
    model.stack.layers[1].attention = build("linear", 12, num_heads=2)
    batch = made.batch(made.examples("train"), range(1), torch.Generator(), model)
    stack = frame_of(of_model(model, batch), "stack")
    assert [child.repeat for child in stack.children if isinstance(child, Frame)] == [1, 1, 1]
    assert [child.nodes()[1].detail.split(",")[0] for child in stack.children[:3]] == [
        "multihead",
        "linear",
        "multihead",
    ]


class Block(nn.Module):
    """Two maps of equal width."""

    def __init__(self):
        super().__init__()
        self.norm, self.first, self.activation = nn.LayerNorm(8), nn.Linear(8, 8), nn.ReLU()

    def forward(self, x):
        return self.activation(self.first(self.norm(x)))


class Branches(nn.Module):
    """Two equal blocks side by side, or one after the other."""

    def __init__(self, chain):
        super().__init__()
        self.blocks, self.chain = nn.ModuleList([Block(), Block()]), chain

    def forward(self, x):
        a, b = self.blocks
        return b(a(x)) if self.chain else a(x) + b(x)


@pytest.mark.parametrize("chain", [True, False])
def test_equal_parts_are_folded_only_where_one_follows_the_other(chain):
    module = Branches(chain)
    diagram = architecture.of_module(module, torch.randn(2, 3, 8))
    blocks = [frame for frame in frames(diagram.root) if frame.label == "block"]
    assert [frame.repeat for frame in blocks] == ([2] if chain else [1, 1])
    assert labels(diagram).count("sum") == (0 if chain else 1)
    assert diagram.parameters == count(module)


@pytest.mark.parametrize("name", models.names())
def test_every_parameter_of_every_model_is_in_exactly_one_box(name):
    facts = facts_of(f"models.{name}")
    diagram = Diagram.from_dict(facts["architecture"])
    assert diagram.parameters == facts["parameters"]
    assert all(node.used for node in diagram.root.nodes())
    paths = [node.path for node in diagram.root.nodes() if node.parameters]
    assert len(paths) == len(set(paths))
    _all_is_connected(diagram)


@pytest.mark.parametrize("name", names())
def test_every_parameter_of_every_mechanism_is_in_exactly_one_box(name):
    layer = build(name, dim=12, **entry(name).needs)
    diagram = architecture.of_layer(layer)
    assert diagram.parameters == count(layer)
    assert all(node.used for node in diagram.root.nodes())
    _all_is_connected(diagram)


def _all_is_connected(diagram):
    """All but inputs, learned rows and embeddings of positions are fed, and all but the output feed something."""
    begins = {node for node in diagram.root.nodes() if node.kind in ("input", "memory", "embedding")}
    fed_ = {edge.target for edge in diagram.edges if not edge.back}
    feeding = {edge.source for edge in diagram.edges if not edge.back}
    nodes = set(diagram.root.nodes())
    assert nodes - fed_ <= begins
    assert {node.kind for node in nodes - feeding} == {"output"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ReLU", "ReLU"),
        ("LeakyReLU", "leaky ReLU"),
        ("SiLU", "SiLU"),
        ("GELU", "GELU"),
        ("Conv2d", "conv2d"),
        ("FeedForward", "feed-forward"),
        ("self_attn", "self-attention"),
    ],
)
def test_modules_have_the_names_people_write(name, expected):
    assert words(name) == expected


def test_the_recurrence_of_seq2seq_is_a_loop_with_its_state():
    diagram, _ = drawn("seq2seq", "dates", dim=8)
    loop = frame_of(diagram, "for each step")
    assert [node.label for node in loop.nodes()] == ["cross-attention", "decoder: GRU cell"]
    assert fed(diagram, "cross-attention") == {"encoder: GRU", "begin"}
    assert fed(diagram, "cross-attention", back=True) == {"decoder: GRU cell"}
    assert fed(diagram, "decoder: GRU cell") == {"cross-attention", "begin", "target embedding"}
    assert fed(diagram, "decoder: GRU cell", back=True) == {"decoder: GRU cell"}
    assert fed(diagram, "joined") == {"cross-attention", "decoder: GRU cell"}


def test_input_feeding_closes_the_loop_behind_the_attention():
    diagram, _ = drawn("seq2seq", "dates", dim=8, feeding="luong", attention="dot")
    loop = frame_of(diagram, "for each step")
    assert [node.label for node in loop.nodes()] == ["decoder: GRU cell", "cross-attention", "joined"]
    assert fed(diagram, "decoder: GRU cell", back=True) == {"joined", "decoder: GRU cell"}


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_every_cell_that_is_used_by_its_weights_is_one_box_that_reads_itself(cell):
    diagram, model = drawn("seq2seq", "dates", dim=8, cell=cell, layers=2)
    cells = [node for node in diagram.root.nodes() if node.label.startswith("decoder")]
    assert [node.parameters for node in cells] == [count(one) for one in model.decoder.cells]
    assert all(any(e.back and e.source is node and e.target is node for e in diagram.edges) for node in cells)
    assert not [node for node in diagram.root.nodes() if node.kind in ("×", "·")]


def test_the_turing_machine_is_a_loop_of_controller_heads_and_memory():
    diagram, model = drawn("ntm", "copy", slots=7, width=5, hidden=6)
    loop = frame_of(diagram, "for each step")
    assert [node.label for node in loop.nodes()] == ["controller", "heads", "memory", "concatenation"]
    assert fed(diagram, "controller") == {"inputs"} and fed(diagram, "controller", back=True) == {"concatenation"}
    assert fed(diagram, "heads") == {"controller"} and fed(diagram, "memory") == {"heads"}
    assert fed(diagram, "memory", back=True) == {"memory"}
    assert fed(diagram, "output") == {"concatenation"} and fed(diagram, "concatenation") == {"controller", "memory"}
    assert next(node for node in loop.nodes() if node.label == "memory").detail == "7 × 5"
    assert diagram.parameters == count(model)


def test_the_dynamic_memory_is_written_for_each_segment():
    diagram = architecture.of_layer(build("dynamic-memory", 8, slots=3, segment=2))
    loop = frame_of(diagram, "for each segment of 2")
    assert [node.label for node in loop.nodes()] == [
        "writer: query map",
        "attention",
        "writer: output map",
        "gate: GRU cell",
    ]
    assert fed(diagram, "attention") == {"writer: query map", "writer: key map", "writer: value map"}
    assert fed(diagram, "writer: query map") == {"slots"}
    assert fed(diagram, "writer: query map", back=True) == {"gate: GRU cell"}
    assert fed(diagram, "reader") == {"rows", "concatenation"}


def test_a_model_that_reads_in_segments_remembers_in_its_attention():
    diagram, _ = drawn("transformer-xl", "language", dim=8, layers=2, num_heads=2, segment=16, memory=16)
    assert frame_of(diagram, "for each segment of 16")
    turning = {edge.source.label for edge in diagram.edges if edge.back}
    assert turning == {"causal self-attention"}
    assert labels(diagram).count("sum") == 2 and frame_of(diagram, "layer").repeat == 2


def test_the_inside_of_multihead_attention_is_its_three_maps_attention_and_the_output():
    diagram = architecture.of_layer(build("multihead", 12, num_heads=3))
    edges = {(edge.source.label, edge.target.label) for edge in diagram.edges}
    assert edges == {
        ("rows", "query map"),
        ("rows", "key map"),
        ("rows", "value map"),
        ("query map", "attention"),
        ("key map", "attention"),
        ("value map", "attention"),
        ("attention", "output map"),
        ("output map", "rows"),
    }
    (attention,) = [node for node in diagram.root.nodes() if node.label == "attention"]
    assert attention.detail == "scaled-dot, softmax"


def test_a_mechanism_without_parts_is_one_box():
    diagram = architecture.of_layer(build("global-query", 12))
    assert labels(diagram) == ["rows", "self-attention", "rows"] and diagram.parameters == 0


class ByHand(nn.Module):
    """Attention written out, with a matrix and a row of its own."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.start = nn.Parameter(torch.randn(8))
        self.never = nn.Linear(3, 5)

    def forward(self, x):
        weights = torch.softmax(self.query(x) @ self.key(x).mT / 8**0.5, -1)
        return weights @ (x @ self.matrix) + self.start


def test_any_module_is_drawn_also_what_it_writes_by_hand():
    module = ByHand()
    diagram = architecture.of_module(module, torch.randn(2, 3, 8))
    assert fed(diagram, "attention") == {"query", "key", "matrix"}
    assert fed(diagram, "matrix") == {"x"} and fed(diagram, "sum") == {"attention", "start"}
    assert [node.path for node in diagram.root.nodes() if not node.used] == ["never"]
    assert diagram.parameters == count(module)


class SharedNorm(nn.Module):
    """One normalisation used twice, and a map used for three rounds."""

    def __init__(self):
        super().__init__()
        self.norm, self.map, self.out = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.norm(self.map(self.norm(x)))
        return self.out(x)


class Rounds(nn.Module):
    """One block for five rounds."""

    def __init__(self):
        super().__init__()
        self.block, self.out = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        for _ in range(5):
            x = x + F.relu(self.block(x))
        return self.out(x)


def test_a_module_called_twice_is_drawn_twice_and_counted_once():
    module = SharedNorm()
    diagram = architecture.of_module(module, torch.randn(2, 3, 8))
    assert labels(diagram) == ["x", "layer norm", "linear", "layer norm", "out", "output"]
    assert diagram.parameters == count(module) and not any(edge.back for edge in diagram.edges)


def test_a_module_called_in_rounds_is_a_loop():
    module = Rounds()
    diagram = architecture.of_module(module, torch.randn(2, 3, 8))
    (loop,) = [frame for frame in frames(diagram.root) if frame.loop]
    assert [node.label for node in loop.nodes()] == ["block", "sum"]
    assert fed(diagram, "block", back=True) == {"sum"} and fed(diagram, "out") == {"sum"}
    assert diagram.parameters == count(module)


def test_layers_of_torch_are_drawn():
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
    diagram = architecture.of_module(module, torch.randn(2, 5, 8))
    layer = frame_of(diagram, "layer")
    assert layer.repeat == 3 and labels(diagram).count("sum") == 2
    assert next(node.label for node in layer.nodes()) == "self-attention"
    assert diagram.parameters == count(module)


def test_data_and_mode_survive():
    made = tasks.build("digits")
    problem = models.problem_for("encoder", made.problems())
    made.pose(problem)
    model = models.build("encoder", problem, dim=8, layers=1, num_heads=2).train()
    batch = made.batch(made.examples("train"), range(1), torch.Generator(), model)
    diagram = of_model(model, batch)
    assert all(part.training for part in model.modules())
    assert not any(parameter.grad is not None for parameter in model.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    again = Diagram.from_dict(diagram.to_dict())
    assert again.to_dict() == diagram.to_dict()
    assert architecture.svg(again) == architecture.svg(diagram)
    assert all(isinstance(node, DiagramNode) for node in again.root.nodes())
