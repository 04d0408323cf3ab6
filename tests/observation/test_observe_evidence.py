"""Weights that are shown as exact are those the values were mixed with; others are unverified or refused."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention
from x_transformers import Decoder, Encoder, TransformerWrapper
from x_transformers.attend import Attend

import regard
from regard.errors import RegardError
from tests.observation import peers
from tests.observation.peers import WORDS, ids

pytestmark = [pytest.mark.filterwarnings(text) for text in peers.FLEX_WARNINGS]


def granite(**options):
    import transformers

    torch.manual_seed(3)
    sizes = {"hidden_size": 24, "intermediate_size": 29, "num_attention_heads": 3, "num_key_value_heads": 3}
    config = transformers.GraniteSWAConfig(vocab_size=WORDS, num_hidden_layers=1, **sizes, **options)
    model = transformers.GraniteSWAModel(config)
    nn.init.normal_(model.layers[0].self_attn.sinks)
    return model


def mixed(model, run):
    """The values and the output of the first layer's attention, (b,h,n,d) each."""
    found, layer = {}, model.layers[0].self_attn
    hooks = [
        layer.v_proj.register_forward_hook(lambda _, given, out: found.update(value=out)),
        layer.o_proj.register_forward_pre_hook(lambda _, given: found.update(output=given[0])),
    ]
    run()
    for hook in hooks:
        hook.remove()
    return [found[name].unflatten(-1, (3, -1)).transpose(1, 2) for name in ("value", "output")]


@torch.no_grad()
def test_a_sink_that_is_applied_after_the_mixture_is_a_part_of_the_weights():
    model = granite().eval()
    with regard.observe(model) as seen:
        value, output = mixed(model, lambda: model(ids(7)))
    site = seen[seen.names()[0]]
    torch.testing.assert_close(site.weights() @ value, output)
    assert site.how == "exact" and "exact" in repr(site)
    assert site.weights().sum(-1).max() < 0.99


@torch.no_grad()
def test_under_dropout_weights_are_checked_by_what_was_kept():
    model, tokens = granite(attention_dropout=0.3), ids(7)
    with regard.observe(model.eval()) as calm:
        model(tokens)
    with regard.observe(model.train()) as seen:
        model(tokens)
    name = seen.names()[0]
    torch.testing.assert_close(seen[name].weights(), calm[name].weights())
    assert seen[name].how == "exact"


class Lying(nn.Module):
    """Calls an eager attention with an unknown extra operation."""

    is_causal, scaling, dropout = False, 0.5, 0.0

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return eager_attention_forward(self, x, x, x, None, dropout=self.dropout, scaling=0.5)[0]


def eager_attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    scores = query @ key.mT * scaling
    if module.how == "another score":
        scores = scores**3
    weights = F.dropout(scores.softmax(-1), dropout, module.training)
    used = weights.flip(1) if module.how == "another mixture" else weights
    output = (used @ value).transpose(1, 2)
    return output, None if module.how == "no weights" else weights


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "how, expected",
    [("as it says", "exact"), ("another score", "exact"), ("another mixture", "unverified"), ("no weights", "exact")],
)
@torch.no_grad()
def test_eager_attention_is_exact_only_if_its_output_agrees(how, expected, training):
    torch.manual_seed(4)
    model, x = Lying(how).train(training), torch.randn(2, 3, 7, 5)
    with regard.observe(model) as seen:
        out = model(x)
    site = seen["Lying"]
    assert site.how == expected and expected in repr(site)
    agrees = torch.allclose(site.weights() @ x, out.transpose(1, 2), atol=1e-5)
    assert agrees == (expected == "exact")


@pytest.mark.parametrize(
    "how, expected", [("as it says", "exact"), ("another mixture", "unverified"), ("no weights", "unverified")]
)
@torch.no_grad()
def test_an_eager_attention_with_dropout(how, expected):
    torch.manual_seed(4)
    model, x = Lying(how).train(), torch.randn(2, 3, 7, 5)
    model.dropout = 0.4
    with regard.observe(model) as seen:
        model(x)
    state = torch.get_rng_state()
    assert seen["Lying"].how == expected
    if expected == "exact":
        torch.testing.assert_close(seen["Lying"].weights(), (x @ x.mT * 0.5).softmax(-1))
    assert torch.equal(state, torch.get_rng_state())  # reading weights draws no random numbers


MIXING = {
    "talking heads": {"attn_post_talking_heads": True},
    "scaled by scores": {"attn_pre_scale_post_talking_heads": True},
    "gumbel": {"attn_gumbel_softmax": True},
    "soft gumbel": {"attn_gumbel_softmax": True, "attn_gumbel_softmax_hard": False},
    "learned sink": {"attn_head_learned_sink": True},
    "sparse": {"attn_sparse_topk": 2},
    "zero key": {"attn_add_zero_kv": True},
    "grouped": {"attn_kv_heads": 2},
    "one key head": {"attn_one_kv_head": True},
    "before the softmax": {"attn_pre_talking_heads": True},
}


@pytest.mark.parametrize("kind", [Encoder, Decoder])
@pytest.mark.parametrize("options", MIXING.values(), ids=MIXING)
@torch.no_grad()
def test_x_transformers_weights_are_those_the_values_are_mixed_with(options, kind):
    torch.manual_seed(6)
    layers = kind(dim=24, depth=1, heads=4, attn_dim_head=5, **options)
    model = TransformerWrapper(num_tokens=WORDS, max_seq_len=16, attn_layers=layers).eval()
    attend = next(part for part in model.modules() if isinstance(part, Attend))
    for name in ("post_softmax_talking_heads", "pre_scale_post_talking_heads", "pre_softmax_talking_heads"):
        if getattr(attend, name) is not None:
            nn.init.normal_(getattr(attend, name).weight)
    got = {}
    attend.register_forward_hook(lambda _, given, out: got.update(value=given[2], output=out[0]))
    with regard.observe(model) as seen:
        model(ids(7))
    state = torch.get_rng_state()
    site, value = seen[seen.names()[0]], got["value"]
    weights = site.weights()
    assert torch.equal(weights, site.weights())
    value = value.repeat(1, 4 // value.shape[1], 1, 1)
    if "attn_add_zero_kv" in options:
        value = F.pad(value, (0, 0, 1, 0))
    torch.testing.assert_close(weights @ value, got["output"], atol=1e-5, rtol=1e-5)
    assert site.how == "exact"
    assert torch.equal(state, torch.get_rng_state())


@torch.no_grad()
def test_x_transformers_under_dropout():
    for options, expected in (({}, "exact"), ({"attn_post_talking_heads": True}, "unverified")):
        layers = Encoder(dim=24, depth=1, heads=4, attn_dim_head=5, attn_dropout=0.3, **options)
        model = TransformerWrapper(num_tokens=WORDS, max_seq_len=16, attn_layers=layers).train()
        with regard.observe(model) as seen:
            model(ids(7))
        assert seen[seen.names()[0]].how == expected


class Relative(nn.Module):
    """FlexAttention with a learned bias that its function reads from the module."""

    def __init__(self, part):
        super().__init__()
        self.part, self.bias = part, nn.Parameter(torch.randn(2, 16))
        self.holder = nn.ParameterDict({"bias": nn.Parameter(torch.randn(2, 16))})
        self.plain = [torch.randn(2, 16)]

    def read(self):
        return {"own": self.bias, "a part's": self.holder["bias"], "in a list": self.plain[0]}[self.part]

    def forward(self, x):
        def score_mod(score, b, h, q, k):
            return score + self.read()[h, q - k + 8]

        return flex_attention(x, x, x, score_mod=score_mod)


@pytest.mark.parametrize("data", [False, True], ids=["counted", ".data"])
@pytest.mark.parametrize("part", ["own", "a part's", "in a list"])
@torch.no_grad()
def test_a_score_function_that_reads_changed_state_is_refused(part, data):
    torch.manual_seed(8)
    model, x = Relative(part), torch.randn(1, 2, 8, 4)
    with regard.observe(model) as seen:
        out = model(x)
    site = seen["Relative"]
    torch.testing.assert_close(site.weights() @ x, out)
    (model.read().data if data else model.read()).add_(torch.randn(2, 16))
    with pytest.raises(RegardError, match="changed"):
        site.weights()


class Fused(nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)


ASKED = {
    "weights": lambda site: site.weights(rows=[0]),
    "summary": lambda site: site.summary(top=2),
    "columns_of": lambda site: site.columns_of([5]),
    "pooled": lambda site: site.pooled(4, 4),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@torch.no_grad()
def test_a_write_to_one_row_without_a_version_is_detected_on_first_reading(ask):
    model, (q, k, v) = Fused(), torch.randn(3, 2, 3, 71, 16)
    with regard.observe(model) as seen:
        model(q, k, v)
    k.data[0, :, 37] += 3
    with pytest.raises(RegardError, match="changed"):
        ask(seen["Fused"])
    assert seen["Fused"].how == "unverified"


class Flipped(torch.Tensor):
    """Attends in reverse order."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        args = [part.as_subclass(torch.Tensor) if isinstance(part, cls) else part for part in args]
        if func is F.scaled_dot_product_attention:
            args[1] = args[1].flip(2)
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def test_a_tensor_subclass_that_replaces_attention_is_unverified():
    model, (q, k, v) = Fused(), torch.randn(3, 1, 2, 7, 4)
    with regard.observe(model) as seen:
        model(q.as_subclass(Flipped), k, v)
    assert seen["Fused"].how == "unverified"
    with regard.observe(model) as seen:
        model(q, k, v)
    assert seen["Fused"].how == "exact"


@torch.no_grad()
def test_steps_of_a_generation_share_the_values_of_their_proof():
    model = peers.small("llama")
    with regard.observe(model) as seen:
        model.generate(peers.ids(5), max_new_tokens=6, do_sample=False, eos_token_id=None)
    site = seen[seen.names()[0]]
    columns = {id(reading.proof.values) for reading in site.readings[1:]}
    assert len(site.readings) == 6 and len(columns) == 1
    assert all(site.weights(call=call).shape[-1] == 5 + call for call in range(6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_rounding_is_not_detected_as_a_change(dtype):
    model, (q, k, v) = Fused(), torch.randn(3, 2, 3, 71, 16).to(dtype)
    q = q * 9  # scores far apart
    with regard.observe(model) as seen:
        out = model(q, k, v)
    torch.testing.assert_close(seen["Fused"].weights().double() @ v.double(), out.double(), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@torch.no_grad()
def test_rounded_scores_of_flex_attention_are_not_detected_as_a_change(dtype):
    class Flexible(nn.Module):
        def forward(self, q, k, v):
            return flex_attention(q, k, v)

    torch.manual_seed(1)
    model, (q, k, v) = Flexible(), torch.randn(3, 2, 3, 71, 16).to(dtype)
    with regard.observe(model) as seen:
        model(q * 9, k, v)
    assert seen["Flexible"].weights().shape == (2, 3, 71, 71)


@torch.no_grad()
def test_modules_of_timm_are_checked_by_their_fused_twin():
    with peers.stand_in_for_torchvision():
        from timm.layers import Attention

    x, layer = torch.randn(2, 7, 12), Attention(12, num_heads=3).eval()
    layer.fused_attn = False
    with regard.observe(layer) as seen:
        layer(x)
    assert seen["Attention"].how == "exact"

    class Sharper(Attention):
        def forward(self, x, *args, **kwargs):
            return super().forward(x if self.fused_attn else x * 2, *args, **kwargs)

    layer = Sharper(12, num_heads=3).eval()
    layer.fused_attn = False
    with regard.observe(layer) as seen:
        layer(x)
    assert seen["Sharper"].how == "unverified"
