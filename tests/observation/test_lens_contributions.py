"""The logit lens and direct logit attribution against the same numbers worked out from hidden states and weights."""

import json

import pytest
import torch
from torch import nn

import regard
from regard.errors import RegardError
from tests.observation import peers

transformers = pytest.importorskip("transformers")


def observed(model, *given, **named):
    with regard.observe(model) as seen, torch.no_grad():
        model(*given, **named)
    return seen


def masked_bert(**options):
    torch.manual_seed(4)
    sizes = {"vocab_size": peers.WORDS, "hidden_size": 24, "num_hidden_layers": 3, "intermediate_size": 29}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, num_attention_heads=3, **options)).eval()


def widened(model):
    """A model whose layers matter: weights of a fresh model are too small to change an answer."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(9)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@torch.no_grad()
def test_the_lens_of_gpt2_is_its_norm_and_head_on_hidden_states():
    model, ids = widened(peers.small("gpt2")), peers.ids(7, 2)
    found = observed(model, ids).lens(example=1, words=lambda one: f"w{one}")
    states = model(ids, output_hidden_states=True).hidden_states
    expected = [model.lm_head(model.transformer.ln_f(state))[1] for state in states[:-1]]
    expected.append(model(ids).logits[1])
    assert found.names == ["embedding", "transformer.h.0", "transformer.h.1"]
    assert peers.largest(found.logits, torch.stack(expected)) < 1e-4
    best = expected[1][-1].softmax(-1).max(-1)
    assert found.top()[1][0] == (f"w{best.indices}", pytest.approx(best.values.item(), rel=1e-4))
    assert found.rank(int(best.indices))[1] == 0


@torch.no_grad()
def test_the_lens_of_a_masked_language_model_is_its_whole_head():
    model, ids = widened(masked_bert()), peers.ids(11, 1)
    found = observed(model, ids).lens()
    states = model(ids, output_hidden_states=True).hidden_states
    assert peers.largest(found.logits, torch.cat([model.cls(state) for state in states])) < 1e-4


@torch.no_grad()
def test_the_lens_of_a_decoder_of_ours_is_its_norm_and_head():
    from regard_workbench.tasks.parts.batch import Batch

    model, batch = own_decoder()
    found = observed(model, batch).lens()
    states = [model.embedding(batch.inputs)]
    for layer in model.stack.layers:
        states.append(layer(states[-1]))
    expected = [model.head(model.stack.norm(state), batch)[0] for state in states]
    assert peers.largest(found.logits, torch.stack(expected)) < 1e-5
    assert isinstance(batch, Batch)


def own_decoder():
    from regard_workbench import models, tasks
    from regard_workbench.tasks.parts.batch import Batch

    torch.manual_seed(6)
    task = tasks.build("language")
    model = models.build("decoder", task.problem, layers=2, dim=24, num_heads=3).eval()
    return widened(model), Batch.of(torch.randint(3, 17, (1, 11)))


@torch.no_grad()
def test_what_a_head_of_gpt2_writes_is_its_values_times_its_output_matrix():
    model, ids, answer, other, at = widened(peers.small("gpt2")), peers.ids(7, 1), 5, 8, 4
    found = observed(model, ids).contributions(answer=answer, other=other, position=at)
    read, last = {}, {}
    hooks = [
        block.attn.c_proj.register_forward_pre_hook(lambda module, given, key=key: read.setdefault(key, given[0]))
        for key, block in enumerate(model.transformer.h)
    ]
    hooks.append(model.transformer.ln_f.register_forward_pre_hook(lambda module, given: last.setdefault(0, given[0])))
    logits = model(ids).logits[0, at]
    for hook in hooks:
        hook.remove()
    norm, row = model.transformer.ln_f, last[0][0, at]
    scale = norm.weight / (row.var(unbiased=False) + norm.eps).sqrt()
    direction = model.lm_head.weight[answer] - model.lm_head.weight[other]
    for layer in range(2):
        for head in range(3):
            part = slice(8 * head, 8 * head + 8)
            write = read[layer][0, at, part] @ model.transformer.h[layer].attn.c_proj.weight[part]
            expected = ((write - write.mean()) * scale) @ direction
            assert found.heads[layer, head].item() == pytest.approx(expected.item(), abs=1e-4)
    assert found.logit == pytest.approx((logits[answer] - logits[other]).item(), abs=1e-4)
    total = found.heads.sum().item() + sum(found.others.values()) + found.bias
    assert total == pytest.approx(found.logit, abs=1e-3)
    biases = sum(block.attn.c_proj.bias for block in model.transformer.h)
    expected = ((biases - biases.mean()) * scale + norm.bias) @ direction
    assert found.bias == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "mistral", "t5", "masked", "classes", "own", "torch"])
def test_parts_and_bias_sum_to_the_logit(kind):
    if kind == "own":
        model, batch = own_decoder()
        seen, answer = observed(model, batch), 7
    elif kind == "torch":
        torch.manual_seed(4)
        model = EncoderOfTorch().eval()
        seen, answer = observed(model, torch.randint(0, 17, (1, 7))), 3
    elif kind in ("masked", "classes"):
        model = masked_bert()
        if kind == "classes":
            model = transformers.BertForSequenceClassification(model.config).eval()
        seen, answer = observed(widened(model), peers.ids(11, 2)), 1
    else:
        seen, answer = observed(widened(peers.small(kind)), **peers.inputs(kind)), 4
    found = seen.contributions(answer=answer)
    if kind == "gemma2":  # its logits are capped by a tanh after the head, which is not linear
        assert abs(found.gap) < abs(found.logit) and found.unfrozen == ("after model.layers.1",)
        return
    assert abs(found.gap) < 1e-4 * max(1.0, abs(found.logit), *map(abs, found.others.values()))
    assert not found.unfrozen and found.heads.isfinite().any()
    assert json.dumps(found.to_json(), allow_nan=False) and "gap" in repr(found)


class EncoderOfTorch(nn.Module):
    """Layers of torch, whose output projection is no module call, and a head on the mean of all positions."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(17, 12)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(12, 3, 19, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(12, 5)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids)).mean(1))


@torch.no_grad()
def test_what_a_head_says_is_what_it_writes_for_every_token():
    model, ids = widened(peers.small("llama")), peers.ids(7, 1)
    seen = observed(model, ids)
    found = seen.contributions(answer=3)
    again = seen.contributions(answer=9)
    site = found.sites[1]
    assert found.says[1, 2, 9].item() == pytest.approx(again.heads[1, 2].item(), rel=1e-5)
    top = found.top(site, 2, 3)
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
    assert top[0][1] == pytest.approx(found.says[1, 2].max().item())
    assert found.best(1)[0]["value"] in found.heads.flatten().tolist()


def test_figures_of_both_are_drawn_and_the_model_is_left_as_it_was():
    model, ids = widened(peers.small("gpt2")), peers.ids(7, 1)
    before = model(ids).logits
    seen = observed(model, ids)
    lens = seen.lens(tokens=["$a"] * 7, words=lambda one: "$\\frac" if one % 2 else "\n")
    assert lens.plot().axes and lens.plot(positions=[-1, 2]).axes and seen.contributions().plot().axes
    assert json.dumps(lens.to_json(), allow_nan=False) and "embedding" in repr(lens)
    assert torch.equal(model(ids).logits, before)
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())


def test_wrong_arguments_of_lens_and_contributions_are_refused():
    seen = observed(peers.small("gpt2"), peers.ids(7, 2))
    for options, words in [
        ({"answer": 97}, "answer"),
        ({"other": -1}, "other"),
        ({"position": 7}, "position"),
        ({"example": 2}, "example"),
    ]:
        with pytest.raises(RegardError, match=words):
            seen.contributions(**options)
    with pytest.raises(RegardError, match="example"):
        seen.lens(example=5)
    with pytest.raises(RegardError, match="logits"):
        observed(peers.small("bert"), peers.ids(7)).contributions()
