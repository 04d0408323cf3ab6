"""`bridge`: its modules by hand and as written, what joins its three parts, and decoding in steps."""

import math

import pytest
import torch
from torch import nn

import regard
from regard.nn import positions
from regard_workbench import models
from regard_workbench.models.bridge import SelfAttentionModule
from regard_workbench.tasks import Batch, Problem, Tokens, Writes
from regard_workbench.tasks.answers import shifted

WORDS, OUT, SOURCE, TARGET = 13, 11, 7, 5
PROBLEM = Problem.of(Tokens(WORDS, length=SOURCE), Writes(OUT, TARGET, start=1, end=2))


def built(**options):
    torch.manual_seed(5)
    return models.build("bridge", PROBLEM, **{"dim": 6, "num_heads": 2, "layers": 2, **options}).double().eval()


def question():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randint(3, WORDS, (2, SOURCE), generator=generator)
    targets = torch.randint(3, OUT, (2, TARGET), generator=generator)
    return Batch.of(inputs, torch.arange(SOURCE) < torch.tensor([[SOURCE], [3]]), targets)


def test_a_module_by_hand():
    """Width 2, one head, two positions; p is (1, 0) everywhere."""

    class Shift(nn.Module):
        def forward(self, rows):
            return rows + torch.tensor([1.0, 0.0])

    module = SelfAttentionModule(2, 1, Shift())
    with torch.no_grad():
        module.enter.bias.zero_(), module.leave.bias.zero_()
        module.enter.weight.copy_(
            torch.tensor(
                [
                    [0.0, 1.0],
                    [0.0, 0.0],  # q = (x_2, 0)
                    [math.sqrt(2) * math.log(3), 0.0],
                    [0.0, 0.0],  # k = (√2 ln 3 · (x_1 + 1), 0)
                    [1.0, 0.0],
                    [0.0, 1.0],  # v = (x_1 + 1, x_2)
                ]
            )
        )
        module.leave.weight.copy_(torch.tensor([[0.0, 1.0], [2.0, 0.0]]))
    rows = torch.tensor([[[-1.0, 1.0], [0.0, 0.0]]])
    # k = 0 and √2 ln 3. Query 1: scores 0 and ln 3, weights 1/4 and 3/4. Query 0: weights 1/2 and 1/2.
    # v = (0, 1) and (1, 0); mixed = (3/4, 1/4) and (1/2, 1/2); W₂ mixed = (1/4, 3/2) and (1/2, 1).
    expected = [[-1 + 0.25, 1 + 1.5], [0.5, 1.0]]  # plus x, without p
    torch.testing.assert_close(module(rows)[0], torch.tensor(expected))


def test_a_module_is_two_linear_maps_with_positions_and_concatenated_heads():
    model, heads, width = built(), 2, 3
    module = model.encoder[0]
    assert [type(part) for part in module.modules() if isinstance(part, nn.Linear)] == [nn.Linear] * 2
    rows = torch.randn(3, SOURCE, 6, dtype=torch.float64)
    placed = rows + positions.sinusoidal(SOURCE, 6).double()
    query, key, value = (placed @ module.enter.weight.mT + module.enter.bias).chunk(3, -1)
    found = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        weights = (query[..., part] @ key[..., part].mT / math.sqrt(width)).softmax(-1)
        found.append(weights @ value[..., part])
    expected = rows + torch.cat(found, -1) @ module.leave.weight.mT + module.leave.bias
    torch.testing.assert_close(module(rows), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layer", ["global-layer", "local-layer(window=3)"])
def test_the_parts_are_joined_by_the_layer(layer):
    """The encoder's rows are the history of the layer, the target's rows its queries, and its result the decoder's."""
    model, batch = built(layer=layer), question()
    assert model.layer.entry.name == layer.partition("(")[0]
    with regard.observe(model) as seen:
        logits = model(batch)
    assert seen.names()[:4] == ["encoder.0", "encoder.1", "layer.memory", "layer.history"]
    history = seen["layer.history"].weights()
    assert history.shape == (2, 2, TARGET, SOURCE) and (history[1, :, :, 3:] == 0).all()
    near = (torch.arange(TARGET)[:, None] - torch.arange(SOURCE)).abs() <= 1
    assert (history[0, :, ~near] == 0).all() == layer.startswith("local")
    rows = model.target_embedding(shifted(batch.targets, 1))
    mask = regard.masks.padding(batch.keep)
    expected = model.head(model.decoder(model.layer(rows, model.read(batch), mask=mask)), batch)
    torch.testing.assert_close(logits, expected)
    with torch.no_grad():  # nothing but the history brings the source to the decoder
        model.layer.history.output_map.weight.zero_()
    other = Batch.of(batch.inputs.flip(0), batch.keep, batch.targets)
    torch.testing.assert_close(model(batch), model(other))


@pytest.mark.parametrize("layer", ["global-layer", "local-layer(window=3)"])
@pytest.mark.parametrize("encoding", ["sinusoidal", "half-wave", "learned", "none"])
def test_decoding_step_by_step_equals_teacher_forcing(layer, encoding):
    model, batch = built(layer=layer, positions=encoding, decoder_layers=1), question()
    expected = model(batch)
    tokens, state, found, done = shifted(batch.targets, 1), model.initial_state(batch), [], 0
    with torch.no_grad():
        for size in (1, 2, 1, 1):
            logits, state = model.step(tokens[:, done : done + size], state)
            found.append(logits)
            done += size
    torch.testing.assert_close(torch.cat(found, 1), expected, rtol=1e-9, atol=1e-9)


def test_only_attention_layers_join_the_parts():
    with pytest.raises(regard.RegardError, match=r"layer.*'globl-layer'.*Did you mean 'global-layer'"):
        built(layer="globl-layer")
    with pytest.raises(regard.RegardError, match="layer"):
        built(layer="multihead")
    with pytest.raises(regard.RegardError, match="no place for another attention"):
        built(attention="local")
