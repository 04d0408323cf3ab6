"""The layer in graphs: of `torch.export`, valid for every length, of `torch.fx`, and of static quantisation."""

import pickle

import pytest
import torch
from torch import nn

import regard
from regard.interop.torch import MultiheadAttention, replace, restore
from tests.interop.torch_layers import pair, rows

BATCH, WIDTH, HEADS = 3, 14, 2
LENGTHS = (2, 7, 15, 16, 17, 43)  # below and above 16, where evaluation takes another path
OF_ANY_SIZE = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
MASKS = {
    "no-mask": lambda batch, length: {},
    "padding": lambda batch, length: {"key_padding_mask": hidden_after(batch, length)},
    "causal": lambda batch, length: {"attn_mask": later(length)},
    "numbers-and-padding": lambda batch, length: {
        "attn_mask": rows(length, length, seed=length),
        "key_padding_mask": torch.zeros(batch, length).masked_fill(hidden_after(batch, length), -torch.inf),
    },
}

quantised = pytest.mark.filterwarnings(
    "ignore:.*quant:DeprecationWarning",
    "ignore:.*quant:UserWarning",
    "ignore:.*observer:UserWarning",
    "ignore:.*reduce_range:UserWarning",
    "ignore:.*TypedStorage:UserWarning",
)


def hidden_after(batch, length):
    """Padding of the last third of the first sequence."""
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, -(-2 * length // 3) :] = True
    return padding


def later(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


class SelfAttention(nn.Module):
    """The output, and the weights where they are wanted, of one sequence attending to itself."""

    def __init__(self, attention, need_weights=False):
        super().__init__()
        self.attention, self.need_weights = attention, need_weights

    def forward(self, sequence, attn_mask=None, key_padding_mask=None):
        output, weights = self.attention(sequence, sequence, sequence, key_padding_mask, self.need_weights, attn_mask)
        return (output, weights) if self.need_weights else (output,)


class Block(nn.Module):
    """What a user builds from torch's layers: attention of learned queries, then an encoder."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.queries = nn.Parameter(rows(5, WIDTH))
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 11, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, sequence):
        asked = self.queries.expand(sequence.shape[0], -1, -1)
        return self.encoder(self.attention(asked, sequence, sequence, need_weights=False)[0])


@pytest.mark.slow
@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("exported", [7, 41], ids=["from-7", "from-41"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "length-first"])
def test_a_layer_exported_at_one_length_serves_every_length(batch_first, exported, masked):
    theirs, ours = (layer.eval() for layer in pair(WIDTH, HEADS, batch_first=batch_first))
    need_weights = masked in ("no-mask", "causal")

    def inputs(batch, length):
        shape = (batch, length, WIDTH) if batch_first else (length, batch, WIDTH)
        return (rows(*shape, seed=length),), MASKS[masked](batch, length)

    positional, named = inputs(BATCH, exported)
    with torch.no_grad():
        graph = torch.export.export(
            SelfAttention(ours, need_weights),
            positional,
            named,
            dynamic_shapes=dict.fromkeys(("sequence", *named), OF_ANY_SIZE),
        ).module()
        for length in LENGTHS:
            positional, named = inputs(5, length)
            outputs = graph(*positional, **named)
            for expected in (ours, theirs):
                wanted = SelfAttention(expected, need_weights)(*positional, **named)
                torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_replaced_encoder_exported_at_one_length_serves_every_length():
    model = replace(Block()).eval()
    graph = torch.export.export(model, (rows(BATCH, 7, WIDTH),), dynamic_shapes=(OF_ANY_SIZE,)).module()
    for length in LENGTHS:
        sequence = rows(5, length, WIDTH, seed=length)
        torch.testing.assert_close(graph(sequence), model(sequence), rtol=1e-5, atol=1e-5)


def test_a_graph_of_fx_calls_the_layers_as_it_calls_those_of_torch():
    theirs, ours = Block().eval(), replace(Block()).eval()
    traced, expected = torch.fx.symbolic_trace(ours), torch.fx.symbolic_trace(theirs)
    assert [node.format_node() for node in traced.graph.nodes] == [node.format_node() for node in expected.graph.nodes]
    assert type(traced.attention) is MultiheadAttention
    for length in (5, 19):
        sequence = rows(BATCH, length, WIDTH, seed=length)
        assert torch.equal(traced(sequence), ours(sequence))
        torch.testing.assert_close(traced(sequence), theirs(sequence), rtol=1e-5, atol=1e-5)


def test_a_graph_of_fx_runs_the_hooks_of_a_layer_once():
    model = replace(Block()).eval()
    called = []

    def doubled(layer, inputs, output):
        called.append(layer)
        return output[0] * 2, output[1]

    model.attention.register_forward_hook(doubled)
    traced = torch.fx.symbolic_trace(model)
    assert not called
    sequence = rows(BATCH, 5, WIDTH)
    output = traced(sequence)
    assert called == [traced.attention]
    assert torch.equal(output, model(sequence))


def test_fx_looks_into_a_subclass_as_into_one_of_torchs_layer():
    class First(MultiheadAttention):
        def forward(self, query):
            return self.out_proj(query)

    traced = torch.fx.symbolic_trace(nn.Sequential(First(WIDTH, HEADS)))
    assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["0.out_proj"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_the_class_is_pickled_by_its_own_name(protocol):
    assert pickle.loads(pickle.dumps(MultiheadAttention, protocol)) is MultiheadAttention
    assert b"regard.interop.torch.multihead_attention" in pickle.dumps(MultiheadAttention, protocol)
    assert MultiheadAttention(6, 2).__module__ == "regard.interop.torch.multihead_attention"


@quantised
def test_a_replaced_model_is_quantised_by_fx():
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    sequence, outputs = rows(BATCH, 19, WIDTH), []
    for model in (Block().eval(), replace(Block()).eval()):
        whole = nn.Sequential(nn.Linear(WIDTH, WIDTH), model)
        with torch.no_grad():
            whole[0].weight.copy_(torch.eye(WIDTH))
            whole[0].bias.zero_()
        prepared = quantize_fx.prepare_fx(whole, get_default_qconfig_mapping("fbgemm"), (sequence,))
        prepared(sequence)
        converted = quantize_fx.convert_fx(prepared)
        assert type(converted.get_submodule("0")) is torch.ao.nn.quantized.Linear
        outputs.append(converted(sequence))
    torch.testing.assert_close(*outputs, rtol=1e-5, atol=1e-5)


@quantised
def test_static_quantisation_takes_a_restored_model_and_says_so_of_a_replaced_one():
    from torch.ao.quantization import DeQuantStub, QuantStub, convert, get_default_qconfig, prepare

    class Quantisable(nn.Module):
        def __init__(self, attention):
            super().__init__()
            self.enter, self.attention, self.leave = QuantStub(), attention, DeQuantStub()

        def forward(self, sequence):
            inside = self.enter(sequence)
            return self.leave(self.attention(inside, inside, inside)[0])

    def quantise(attention):
        model = Quantisable(attention).eval()
        model.qconfig = get_default_qconfig("fbgemm")
        prepared = prepare(model)
        prepared(sequence)
        return convert(prepared)

    sequence = rows(BATCH, 7, WIDTH)
    theirs, ours = pair(WIDTH, HEADS, batch_first=True)
    expected = quantise(theirs)(sequence)
    assert torch.equal(quantise(restore(ours))(sequence), expected)
    again = quantise(replace(pair(WIDTH, HEADS, batch_first=True)[0]))
    with pytest.raises(regard.BadType, match=r"restore\(model\) before prepare"):
        again(sequence)
