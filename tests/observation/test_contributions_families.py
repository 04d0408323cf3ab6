"""What heads and layers write in mixtures of experts and in parallel layers: the same numbers worked out by hooks."""

import pytest
import torch
from torch import nn

import regard
from tests.observation import peers

transformers = pytest.importorskip("transformers")

BASE = {
    "vocab_size": peers.WORDS,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "pad_token_id": 0,
}
HEADS = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
LATENT = {
    **BASE,
    "num_key_value_heads": 3,
    "intermediate_size": 28,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "q_lora_rank": 11,
    "kv_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
FAMILIES = {
    "llama": ("LlamaConfig", {**BASE, "intermediate_size": 29}),
    "mixtral": ("MixtralConfig", {**HEADS, "intermediate_size": 28, "num_local_experts": 4}),
    "qwen3_moe": ("Qwen3MoeConfig", {**HEADS, "moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2}),
    "deepseek_v3": ("DeepseekV3Config", LATENT),
    "gpt_oss": (
        "GptOssConfig",
        {**HEADS, "intermediate_size": 28, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            **HEADS,
            "intermediate_size": 28,
            "intermediate_size_mlp": 31,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
        },
    ),
    "falcon": ("FalconConfig", {**BASE, "num_attention_heads": 4}),
    "falcon, new decoder": ("FalconConfig", {**BASE, "num_attention_heads": 4, "new_decoder_architecture": True}),
    "falcon, one after the other": ("FalconConfig", {**BASE, "num_attention_heads": 4, "parallel_attn": False}),
    "switch": (
        "SwitchTransformersConfig",
        {
            "vocab_size": peers.WORDS,
            "d_model": 24,
            "d_kv": 6,
            "d_ff": 28,
            "num_heads": 4,
            "num_layers": 2,
            "num_decoder_layers": 2,
            "num_experts": 3,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "expert_capacity": 64,
            "decoder_start_token_id": 0,
            "pad_token_id": 0,
        },
    ),
}


def built(family):
    name, sizes = FAMILIES[family]
    torch.manual_seed(5)
    config = getattr(transformers, name)(**sizes)
    kind = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.4)
            elif "norm" not in name:  # sinks, biases, corrections of routers
                parameter.normal_(0.0, 0.1)
    return model


class Writes:
    """By hooks: what each head and each layer beside its heads wrote into the last row, and the final norm's input."""

    def __init__(self, model, ids):
        self.heads, self.rest, self.rows = [], [], None
        layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
        self.norm = model.transformer.ln_f if hasattr(model, "transformer") else model.model.norm
        handles, kept = [], {}
        for number, layer in enumerate(layers):
            attention = layer.self_attn if hasattr(layer, "self_attn") else layer.self_attention
            project = attention.o_proj if hasattr(attention, "o_proj") else attention.dense
            handles += [
                layer.register_forward_hook(self.note(kept, number, "layer"), with_kwargs=True),
                project.register_forward_hook(self.note(kept, number, "project"), with_kwargs=True),
            ]
        handles.append(
            self.norm.register_forward_pre_hook(lambda module, args: kept.update(end=args[0][0, -1].double()))
        )
        with torch.no_grad():
            self.logits = model(ids).logits[0, -1].double()
        for handle in handles:
            handle.remove()
        self.rows = kept["end"]
        for number in range(len(layers)):
            before, after, _ = kept[number, "layer"]
            joined, projected, module = kept[number, "project"]
            heads, matrix = model.config.num_attention_heads, module.weight.detach().double()
            size = matrix.shape[1] // heads
            self.heads.append(
                [
                    matrix[:, head * size : (head + 1) * size] @ joined[head * size : (head + 1) * size]
                    for head in range(heads)
                ]
            )
            self.rest.append(after - before - projected)

    @staticmethod
    def note(kept, number, what):
        def hook(module, args, kwargs, output):
            rows = args[0] if args else kwargs["hidden_states"]
            written = output if isinstance(output, torch.Tensor) else output[0]
            kept[number, what] = (
                rows.reshape(-1, rows.shape[-1])[-1].double(),
                written.reshape(-1, written.shape[-1])[-1].double(),
                module,
            )

        return hook

    def read(self, write, direction):
        """What the head of the vocabulary reads of a write, by the scale that the final norm has."""
        norm, rows = self.norm, self.rows
        if isinstance(norm, nn.LayerNorm):
            scaled = (write - write.mean()) / (rows.var(unbiased=False) + norm.eps).sqrt()
        else:
            scaled = (
                write
                / (
                    rows.square().mean() + norm.variance_epsilon
                    if hasattr(norm, "variance_epsilon")
                    else rows.square().mean() + norm.eps
                ).sqrt()
            )
        return float(scaled * norm.weight.double() @ direction)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "switch"])
@torch.no_grad()
def test_heads_and_layers_write_what_hooks_say(family):
    model, ids = built(family), peers.ids(11, 1)
    with regard.observe(model) as seen:
        model(ids)
    found = seen.contributions(answer=5, other=8)
    hand = Writes(model, ids)
    direction = (model.lm_head.weight[5] - model.lm_head.weight[8]).double()
    heads = torch.tensor([[hand.read(write, direction) for write in site] for site in hand.heads])
    assert peers.largest(found.heads, heads) < 1e-4 * heads.abs().max()
    rest = [hand.read(write, direction) for write in hand.rest]
    assert found.others.keys() == {"embedding", *(f"{name.rpartition('.')[0]}, rest" for name in found.sites)}
    assert [found.others[f"{name.rpartition('.')[0]}, rest"] for name in found.sites] == pytest.approx(rest, abs=1e-4)
    assert max(map(abs, rest)) > 0.05 and heads.abs().max() > 0.05
    assert abs(found.gap) < 1e-4 and not found.unfrozen
    total = found.heads.sum().item() + sum(found.others.values()) + found.bias
    assert total == pytest.approx(float(hand.logits[5] - hand.logits[8]), abs=1e-3)


@torch.no_grad()
def test_experts_that_are_modules_of_their_own_write_with_their_layer():
    """Each reads the rows that were sent to it, so that no output of theirs has a row for every position."""
    model, ids, begun = built("switch"), peers.ids(11, 1), peers.ids(7, 1)
    with regard.observe(model) as seen:
        model(input_ids=ids, decoder_input_ids=begun)
    found = seen.contributions(answer=5)
    kept = {}
    blocks, norm = model.decoder.block, model.decoder.final_layer_norm
    handles = [norm.register_forward_pre_hook(lambda module, args: kept.update(rows=args[0][0, -1].double()))]
    for number, block in enumerate(blocks):
        handles.append(
            block.layer[2].register_forward_hook(
                lambda module, args, output, number=number: kept.__setitem__(number, first(output) - args[0][0, -1])
            )
        )
    logits = model(input_ids=ids, decoder_input_ids=begun).logits
    for handle in handles:
        handle.remove()
    scale = norm.weight.double() / (kept["rows"].square().mean() + norm.variance_epsilon).sqrt()
    direction = (
        scale * model.lm_head.weight[5].double() * (model.model_dim**-0.5 if model.config.tie_word_embeddings else 1.0)
    )
    for number in range(len(blocks)):
        assert found.others[f"decoder.block.{number}, rest"] == pytest.approx(
            float(kept[number].double() @ direction), abs=1e-4
        )
    total = found.heads.nansum().item() + sum(found.others.values()) + found.bias
    assert total == pytest.approx(logits[0, -1, 5].item(), abs=1e-4) and not found.unfrozen


def first(output):
    rows = output if isinstance(output, torch.Tensor) else output[0]
    return rows[0, -1]


class Stack(nn.Module):
    """Layers and a head. `bent`: what bends the rows, by its name; `in_place`: rows are added to in place."""

    def __init__(self, bent=None, in_place=False):
        super().__init__()
        self.embedding = nn.Embedding(17, 12)
        self.layers = nn.ModuleList(Layer(bent if number == 1 else None, in_place) for number in range(3))
        self.head, self.bent = nn.Linear(12, 5), bent

    def forward(self, ids):
        rows = self.embedding(ids)
        for layer in self.layers:
            rows = layer(rows)
        logits = self.head(rows[:, -1])
        return logits.tanh() if self.bent == "head" else logits


class Layer(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, bent, in_place):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.feed, self.bent, self.in_place = Feed(bent == "feed", in_place), bent == "layer", in_place

    def forward(self, rows):
        attended = self.attention(rows, rows, rows, need_weights=False)[0]
        if self.in_place:
            rows += attended
        else:
            rows = rows + attended
        rows = self.feed(rows)
        return rows * rows.sigmoid() if self.bent else rows


class Feed(nn.Module):
    """A feed-forward layer that adds its rows itself: what it returns is the stream, not a write."""

    def __init__(self, bent, in_place):
        super().__init__()
        self.up, self.down = nn.Linear(12, 19), nn.Linear(19, 12)
        self.bent, self.in_place = bent, in_place

    def forward(self, rows):
        written = self.down(self.up(rows).relu())
        if self.in_place:
            written += rows
            return written
        return rows + written + (rows * rows.sigmoid() if self.bent else 0.0)


def stack(**options):
    torch.manual_seed(3)
    model = Stack(**options).eval()
    ids = torch.randint(0, 17, (1, 7), generator=torch.Generator().manual_seed(4))
    with regard.observe(model) as seen, torch.no_grad():
        logits = model(ids)
    return seen, ids, logits[0]


@pytest.mark.parametrize(
    ("bent", "name"), [("layer", "layers.1"), ("feed", "layers.1.feed"), ("head", "after layers.2"), (None, None)]
)
def test_what_does_not_add_up_is_named_with_its_number(bent, name):
    seen, _, logits = stack(bent=bent)
    found = seen.contributions(answer=3)
    parts = found.heads.nansum().item() + sum(found.others.values()) + found.bias
    assert found.gap == pytest.approx(logits[3].item() - parts, abs=1e-5)
    if name is None:
        assert not found.unfrozen and abs(found.gap) < 1e-5
    else:
        assert found.unfrozen == (name,) and abs(found.gap) > 1e-4
        assert f"not held: {name}" in repr(found) and found.to_json()["unfrozen"] == [name]


def test_layers_that_add_in_place_have_the_causes_of_those_that_do_not():
    plain, ids, expected = stack()
    in_place, _, logits = stack(in_place=True)
    assert torch.equal(logits, expected)
    other = (ids + 5) % 17
    assert peers.largest(in_place.lens().logits, plain.lens().logits) < 1e-5
    for at in ("heads", "layers"):
        both = [one.patch(ids, other, at=at, positions="each", answer=3).values for one in (in_place, plain)]
        assert peers.largest(*both) < 1e-5 and both[1].std() > 1e-3
    one, two = in_place.contributions(answer=3), plain.contributions(answer=3)
    assert peers.largest(one.heads, two.heads) < 1e-5 and one.others == pytest.approx(two.others, abs=1e-5)
