"""Exported graphs: torch's own operators only, any batch size and length, the same answers in onnxruntime."""

import pytest
import torch

from regard.nn.parts.steps import run_steps
from regard.support.tracing import standard_operators
from regard_workbench import models, tasks
from regard_workbench.cli.common import catalogue
from regard_workbench.models import MODELS
from regard_workbench.models.parts.model import options_of
from regard_workbench.models.parts.recurrent import Recurrent
from regard_workbench.models.parts.recurrent_steps import stepped
from regard_workbench.training.exporting.interface import GraphModel, interface_of, outputs_of
from regard_workbench.training.exporting.program import free_axes, trace
from tests.nn.contracts.layers import PLAIN

LENGTHS = [(3, 19), (1, 1), (2, 2), (1, 67)]  # batch, length; the first is traced
USUAL = ("additive", "local-p", "linear", "ntm", "dynamic-memory")  # the last two are scans
SMALL = {"language": "language(context=24)", "copy": "copy(max_length=3)"}

by_case = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case.name in USUAL else pytest.mark.nightly) for case in PLAIN], ids=str
)


def inputs(case, batch, length):
    return case.inputs(b=batch, k=length, dtype=torch.float32, seed=length)[0]


@pytest.mark.slow
@by_case
def test_a_graph_of_standard_operators_serves_every_size(case):
    layer = case.build(dtype=torch.float32)
    program = trace(layer, [inputs(case, *LENGTHS[0])])
    called = [
        str(node.target)
        for part in program.graph_module.modules()
        if hasattr(part, "graph")
        for node in part.graph.nodes
        if node.op == "call_function"
    ]
    assert called and not [name for name in called if name.startswith("regard")]
    assert free_axes(program) == [[0, 1]]
    graph = program.module()
    for batch, length in LENGTHS:
        given = inputs(case, batch, length)
        with torch.no_grad():
            torch.testing.assert_close(graph(given), layer(given), rtol=1e-4, atol=1e-5)


def assert_equal_in_onnxruntime(program, names, cases):
    """cases: (inputs, expected outputs)."""
    from regard_workbench.training.exporting.onnx_model import Session, operators, to_onnx

    outputs = [f"output_{number}" for number in range(len(cases[0][1]))]
    model = to_onnx(program, names, outputs)
    assert not [kind for kind in operators(model) if "::" in kind]
    session = Session(model)
    for given, expected in cases:
        found = session(names, given)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def onnx_of_a_layer(case):
    layer = case.build(dtype=torch.float32)
    given = [inputs(case, *size) for size in LENGTHS]
    with torch.no_grad():
        cases = [([one], [layer(one)]) for one in given]
    assert_equal_in_onnxruntime(trace(layer, given[:1]), ["query"], cases)


@pytest.mark.nightly
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_onnxruntime_answers_as_every_mechanism_does(case):
    pytest.importorskip("onnxscript")
    onnx_of_a_layer(case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "dynamic-memory"])
def test_onnxruntime_answers_as_attention_in_a_window_and_a_loop_do(name):
    """A quick sample of the test above. Parameters require gradients, as those of a loaded model do."""
    pytest.importorskip("onnxscript")
    (case,) = [case for case in PLAIN if case.name == name and not case.options]
    onnx_of_a_layer(case)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter about itself
def test_torch_exports_a_layer_to_onnx_without_our_help():
    pytest.importorskip("onnxscript")
    import onnxruntime

    (case,) = [case for case in PLAIN if case.name == "additive" and not case.options]
    layer = case.build(dtype=torch.float32)
    free = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with torch.no_grad():
        written = torch.onnx.export(
            layer, (inputs(case, 3, 19),), dynamo=True, verbose=False, dynamic_shapes={"query": free}
        )
    session = onnxruntime.InferenceSession(written.model_proto.SerializeToString())
    given = inputs(case, 2, 31)
    with torch.no_grad():
        found = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: given.numpy()})[0])
        torch.testing.assert_close(found, layer(given), rtol=1e-4, atol=1e-5)


def first_task_of(name):
    """The first task that a model serves. Asked in the test: posing every task takes seconds of each collection."""
    served = (task for task in tasks.names() if any(models.fits(MODELS[name], one) for one in catalogue.posed(task)))
    return next(served)


@pytest.mark.nightly
@pytest.mark.parametrize("name", models.names())
def test_onnxruntime_answers_as_every_model_does(name):
    """On the first task that a model serves, for batches of several sizes and lengths."""
    pytest.importorskip("onnxscript")
    task = first_task_of(name)
    made = tasks.build(SMALL.get(task, task))
    problem = models.problem_for(name, made.problems())
    made.pose(problem)
    known = options_of(MODELS[name])
    torch.manual_seed(1)
    sizes = {option: size for option, size in {"dim": 16, "layers": 1}.items() if option in known}
    if task == "answer" and name == "answerer":
        sizes.pop("layers", None)
    model = models.build(name, problem, **sizes).eval()
    examples, generator = made.examples("train"), torch.Generator().manual_seed(0)
    batches = [
        made.batch(examples, [index % len(examples) for index in chosen], generator, model)
        for chosen in ([0, 1, 2], [3], [4, 5], [6, 7, 8, 9, 10])
    ]
    interface = interface_of(model, batches[0])
    program = trace(GraphModel(model, interface), interface.tensors(batches[0]))
    with torch.no_grad():
        cases = [(interface.tensors(batch), outputs_of(model(batch))) for batch in batches]
    assert_equal_in_onnxruntime(program, interface.names, cases)


FED = [
    "seq2seq(dim=8)",
    "seq2seq(dim=8, layers=2, cell=lstm, attention=dot, num_heads=2)",
    'seq2seq(dim=8, cell=rnn, attention_layers="additive,local-p")',
]


def dates_of(spec):
    """A model of the task dates, its interface, and the tensors of three batches; their targets are of one length."""
    task = tasks.build("dates")
    problem = models.problem_for("seq2seq", task.problems())
    task.pose(problem)
    torch.manual_seed(1)
    model, examples = models.build(spec, problem).eval(), task.examples("train")
    batches = [task.batch(examples, chosen, torch.Generator(), model) for chosen in ([0, 1, 2], [3], [4, 5])]
    interface = interface_of(model, batches[0])
    return GraphModel(model, interface), interface, [interface.tensors(batch) for batch in batches]


def with_targets(interface, tensors, count):
    """The tensors with so many targets, those of the batch again after its last one."""
    place = interface.names.index("targets")
    targets = tensors[place].repeat(1, 2)[:, :count]
    return [*tensors[:place], targets, *tensors[place + 1 :]]


@pytest.mark.slow
@pytest.mark.parametrize("spec", FED)
def test_a_decoder_that_is_fed_its_attention_is_one_graph_for_every_number_of_targets(spec):
    model, interface, batches = dates_of(spec)
    program = trace(model, batches[0])
    assert free_axes(program) == [[0, 1]] * 3
    graph = program.module()
    for tensors in batches:
        for count in (1, 2, 7, 11, 14):
            given = with_targets(interface, tensors, count)
            with torch.no_grad():
                expected = model(*given)[0]
                assert expected.shape[1] == count
                torch.testing.assert_close(graph(*given)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_attention_that_counts_the_steps_ties_a_graph_to_one_number_of_targets():
    model, interface, batches = dates_of("seq2seq(dim=8, attention=local-m)")
    program = trace(model, with_targets(interface, batches[0], 3))
    assert free_axes(program) == [[0, 1], [0, 1], [0]], "and the description of the file says so"
    given = with_targets(interface, batches[2], 3)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(*given)[0], model(*given)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("spec", FED)
def test_onnxruntime_answers_as_a_decoder_does_for_every_number_of_targets(spec):
    pytest.importorskip("onnxscript")
    model, interface, batches = dates_of(spec)
    given = [with_targets(interface, tensors, count) for tensors in batches for count in (1, 7, 11, 14)]
    with torch.no_grad():
        cases = [(tensors, model(*tensors)) for tensors in given]
    assert_equal_in_onnxruntime(trace(model, batches[0]), interface.names, cases)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_layers_step_by_step_are_those_of_packed_sequences(cell, both):
    torch.manual_seed(2)
    layers = Recurrent(6, 2, cell, both=both).double().eval()
    rows = torch.randn(3, 7, 6, dtype=torch.float64)
    keep = torch.arange(7) < torch.tensor([[7], [4], [1]])
    expected, after = layers(rows, keep)
    found, last = stepped(layers.cells, rows.masked_fill(~keep[..., None], 0), keep, None)
    torch.testing.assert_close(found if layers.widen is None else layers.widen(found), expected)
    hidden = last[0] if cell == "lstm" else last
    torch.testing.assert_close(hidden.transpose(0, 1), after.hidden)
    if cell == "lstm":
        torch.testing.assert_close(last[1].transpose(0, 1), after.cell)
    again, _ = layers(rows, keep, after)
    torch.testing.assert_close(stepped(layers.cells, rows * keep[..., None], keep, last)[0], again)


def test_steps_run_forwards_and_backwards():
    numbers = torch.tensor([[1.0], [2.0], [4.0]])

    def step(carry, given):
        total = carry[0] + given[0]
        return [total], [total * 10]

    last, (found,) = run_steps(step, [torch.zeros(1)], [numbers])
    assert last[0].tolist() == [7.0] and found.flatten().tolist() == [10.0, 30.0, 70.0]
    last, (found,) = run_steps(step, [torch.zeros(1)], [numbers], reverse=True)
    assert last[0].tolist() == [7.0] and found.flatten().tolist() == [70.0, 60.0, 40.0]


def test_outside_of_a_trace_standard_operators_change_nothing():
    import regard

    x = torch.randn(1, 2, 19, 5)
    with standard_operators():
        assert regard.explain(x, x, x, mask=regard.masks.window(3)).impl == "tiled"
