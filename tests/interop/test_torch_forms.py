"""The layer in TorchScript, traced, compiled, exported, under torch.func, in parallel training, on nested tensors."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import functional_call, grad, vmap

import regard
from regard.interop.torch import MultiheadAttention, replace
from tests.interop.torch_layers import assert_same, pair, rows

LENGTH = 19
PADDING = torch.zeros(2, LENGTH, dtype=torch.bool)
PADDING[0, 13:] = True
LATER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
CALLS = {
    "weights": {},
    "plain": {"need_weights": False},
    "padding": {"key_padding_mask": PADDING, "need_weights": False},
    "padding-and-weights": {"key_padding_mask": PADDING},
    "causal": {"attn_mask": LATER, "is_causal": True, "need_weights": False},
    "causal-and-padding": {
        "attn_mask": torch.zeros(LENGTH, LENGTH).masked_fill(LATER, -torch.inf),
        "is_causal": True,
        "key_padding_mask": torch.zeros(2, LENGTH).masked_fill(PADDING, -torch.inf),
        "need_weights": False,
    },
    "by-head": {"attn_mask": rows(6, LENGTH, LENGTH, seed=4) > 0.9, "need_weights": False},
}
LAYERS = [{}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 13, "vdim": 11, "bias": False}]


class SelfAttention(nn.Module):
    """One input, attention of it to itself."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, given, **options):
        return self.attention(given, given, given, **options)[0]


def outputs_and_gradients(layer, module, given, extra):
    output = module(given, **extra)
    return [output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))]


@pytest.mark.parametrize("options", LAYERS, ids=["plain", "added-keys", "other-widths"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "length-first"])
def test_a_scripted_layer_gives_what_the_layer_gives(options, batch_first):
    _, ours = pair(batch_first=batch_first, **options)
    scripted = torch.jit.script(ours)
    shape = (2, LENGTH) if batch_first else (LENGTH, 2)
    query, key, value = (rows(*shape, width, seed=width) for width in (15, ours.kdim, ours.vdim))
    value = key if ours.vdim == ours.kdim else value
    for extra in CALLS.values():
        for average in (True, False):
            mine, other = (
                [part for part in layer(query, key, value, average_attn_weights=average, **extra) if part is not None]
                for layer in (ours, scripted)
            )
            assert_same(mine, other, 2e-6)
    single = (query[0], key[0], value[0]) if batch_first else (query[:, 0], key[:, 0], value[:, 0])
    assert_same(list(ours(*single)), list(scripted(*single)), 2e-6)


def test_a_scripted_layer_trains_and_hides_what_the_layer_hides(tmp_path):
    _, ours = pair(batch_first=True)
    scripted = torch.jit.script(ours)
    given, padding = rows(2, 5, 15), torch.tensor([[True] * 5, [False] * 5])
    for layer in (ours, scripted):
        output, weights = layer(given, given, given, key_padding_mask=padding)
        torch.testing.assert_close(output[0], ours.out_proj.bias.expand(5, 15))
        assert not weights[0].any()
    expected = torch.autograd.grad(ours(given, given, given)[0].square().sum(), ours.in_proj_weight)
    found = torch.autograd.grad(scripted(given, given, given)[0].square().sum(), scripted.in_proj_weight)
    assert_same(found, expected, 1e-4)
    scripted.save(tmp_path / "layer.pt")
    again = torch.jit.load(tmp_path / "layer.pt")
    assert torch.equal(again(given, given, given)[0], scripted(given, given, given)[0])


def test_a_scripted_layer_drops_the_same_weights_from_the_same_seed():
    _, ours = pair(batch_first=True, dropout=0.3)
    scripted, given = torch.jit.script(ours), rows(2, 5, 15)
    found = []
    for layer in (ours, scripted):
        torch.manual_seed(5)
        found.append([layer(given, given, given, need_weights=False)[0]])
    assert_same(*found, 1e-6)


def test_a_replaced_transformer_can_be_scripted():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 13, 0.0, batch_first=True), 2)
    replace(encoder)
    scripted, given = torch.jit.script(encoder), rows(2, 5, 8)
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            torch.testing.assert_close(scripted.train(mode)(given), encoder.train(mode)(given))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", ["weights", "padding", "causal-and-padding"])
def test_a_traced_layer_gives_what_the_layer_gives(name):
    _, ours = pair(batch_first=True)

    class Traceable(SelfAttention):
        def forward(self, given, padding):
            extra = {**CALLS[name]}
            if "key_padding_mask" in extra:
                extra["key_padding_mask"] = padding
            return super().forward(given, **extra)

    call = Traceable(ours)
    traced = torch.jit.trace(call, (rows(2, LENGTH, 15), PADDING))
    all_hidden = torch.ones(2, LENGTH, dtype=torch.bool)  # other contents than those of the trace
    for padding in (PADDING, all_hidden):
        given = rows(2, LENGTH, 15, seed=9)
        torch.testing.assert_close(traced(given, padding), call(given, padding))


@pytest.mark.parametrize(
    "name", [name if name == "causal-and-padding" else pytest.param(name, marks=pytest.mark.slow) for name in CALLS]
)
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"add_bias_kv": True, "add_zero_attn": True}, marks=pytest.mark.slow)],
    ids=["plain", "added-keys"],
)
def test_every_call_compiles_in_one_graph(options, name):
    torch.compiler.reset()
    extra = CALLS[name]
    _, ours = pair(batch_first=True, **options)
    compiled = torch.compile(SelfAttention(ours), fullgraph=True, backend="aot_eager")
    given = rows(2, LENGTH, 15)
    assert_same(
        outputs_and_gradients(ours, compiled, given, extra),
        outputs_and_gradients(ours, SelfAttention(ours), given, extra),
        1e-4,
    )


@pytest.mark.slow
def test_lengths_do_not_compile_again():
    torch.compiler.reset()
    _, ours = pair(batch_first=True)
    count = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(SelfAttention(ours), fullgraph=True, dynamic=True, backend=count)
    counts = []
    for length in (17, 23, 29):
        given, padding = rows(2, length, 15), torch.zeros(2, length, dtype=torch.bool)
        padding[0, 11:] = True
        found = compiled(given, key_padding_mask=padding, need_weights=False)
        expected, _ = ours(given, given, given, key_padding_mask=padding, need_weights=False)
        torch.testing.assert_close(found, expected)
        counts.append(count.frame_count)
    assert len(set(counts)) == 1 and counts[0] <= 2


@pytest.mark.slow
@pytest.mark.parametrize("extra", CALLS.values(), ids=list(CALLS))
def test_every_call_can_be_exported(extra):
    _, ours = pair(batch_first=True)
    given = rows(2, LENGTH, 15)
    exported = torch.export.export(SelfAttention(ours), (given,), extra)
    torch.testing.assert_close(exported.module()(given, **extra), SelfAttention(ours)(given, **extra))


@pytest.mark.parametrize("extra", CALLS.values(), ids=list(CALLS))
def test_gradients_of_torch_func_are_those_of_torch(extra):
    theirs, ours = pair(batch_first=True)
    given, found = rows(2, LENGTH, 15), []
    for layer in (ours, theirs):

        def loss(parameters, layer=layer):
            return functional_call(layer, parameters, (given, given, given), extra)[0].square().sum()

        found.append(list(grad(loss)(dict(layer.named_parameters())).values()))
    assert_same(*found, 1e-4)


@pytest.mark.parametrize("extra", CALLS.values(), ids=list(CALLS))
def test_vmap_over_layers_and_inputs_gives_what_a_loop_gives(extra):
    _, ours = pair(batch_first=True)
    many = rows(3, 2, LENGTH, 15)
    found = vmap(lambda given: ours(given, given, given, **extra)[0])(many)
    expected = torch.stack([ours(given, given, given, **extra)[0] for given in many])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_second_derivatives_work_where_torch_has_them_and_are_named_elsewhere():
    theirs, ours = pair(batch_first=True)
    found = []

    def second(layer, **extra):
        given = rows(2, LENGTH, 15).requires_grad_()
        first = torch.autograd.grad(layer(given, given, given, **extra)[0].square().sum(), given, create_graph=True)
        return torch.autograd.grad(first[0].square().sum(), layer.in_proj_weight)

    found = [second(layer) for layer in (ours, theirs)]
    assert_same(*found, 1e-3)
    with pytest.raises(regard.Unsupported, match='impl="reference"'):
        second(ours, need_weights=False)
    ours.impl = "reference"
    assert_same(second(ours, need_weights=False), found[0], 1e-3)


def test_copies_and_pickles_are_the_same_layer():
    _, ours = pair(batch_first=True, add_bias_kv=True)
    given = rows(2, 5, 15)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert type(other) is MultiheadAttention
        assert torch.equal(other(given, given, given)[0], ours(given, given, given)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_meta_and_fake_tensors_have_the_shapes_of_real_ones(need_weights):
    from torch._subclasses.fake_tensor import FakeTensorMode

    for mode in (torch.device("meta"), FakeTensorMode()):
        with mode:
            layer, given = MultiheadAttention(14, 2, batch_first=True), torch.empty(2, 5, 14)
            for training in (True, False):
                output, weights = layer.train(training)(given, given, given, need_weights=need_weights)
                assert output.shape == (2, 5, 14) and (weights is None or weights.shape == (2, 5, 5))


@pytest.mark.slow
def test_parallel_training_reduces_the_gradients_of_the_layer(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        _, ours = pair(batch_first=True)
        parallel = nn.parallel.DistributedDataParallel(SelfAttention(ours))
        parallel(rows(2, 5, 15), need_weights=False).square().sum().backward()
        assert all(parameter.grad is not None for parameter in ours.parameters())
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*quant.*:DeprecationWarning", "ignore:.*quant.*:UserWarning")
def test_dynamic_quantisation_leaves_the_layer_working():
    model = nn.Sequential(SelfAttention(pair(batch_first=True)[1]), nn.Linear(15, 4)).eval()
    quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    given = rows(2, 5, 15)
    torch.testing.assert_close(quantised[0](given), model[0](given))
    assert quantised(given).shape == (2, 5, 4)
