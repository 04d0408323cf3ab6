"""`transformer` and `seq2seq` forecast a row for each coming step: against torch's layers and a plain loop."""

import pytest
import torch

from regard.errors import RegardError
from regard.nn import positions
from regard_workbench import models
from regard_workbench.tasks import Batch, Problem, Vectors
from regard_workbench.tasks.answers import ForecastSteps
from tests.models.torch_twin import torch_twin

CONTEXT, HORIZON, COLUMNS, B, DIM = 13, 5, 3, 2, 8
PROBLEM = Problem.of(Vectors(COLUMNS, CONTEXT), ForecastSteps(HORIZON, COLUMNS))
NAMES = ["transformer", "seq2seq", "seq2seq(feeding=none)", "seq2seq(attention=general, cell=lstm)"]


def small(name, **options):
    torch.manual_seed(7)
    return models.build(name, PROBLEM, **{"dim": DIM, "layers": 2, **options}).double().eval()


def window(seed=3):
    return torch.randn(B, CONTEXT, COLUMNS, generator=torch.Generator().manual_seed(seed)).double()


def test_a_decoder_reads_the_last_known_row_at_each_coming_step():
    x = window()
    inputs = PROBLEM.answer.decoder_inputs(Batch.of(x))
    assert inputs.shape == (B, HORIZON, COLUMNS)
    assert all(torch.equal(inputs[:, step], x[:, -1]) for step in range(HORIZON))
    assert PROBLEM.answer.decoder_stream() == Vectors(COLUMNS, HORIZON)


def test_the_transformer_gives_the_last_values_plus_what_torchs_layers_compute():
    model, x = small("transformer(preset=vaswani)", hidden=11), window()
    encoder, decoder = torch_twin(model)

    def embedded(rows, data):
        return data @ rows.weight.T + rows.bias + positions.sinusoidal(data.shape[1], DIM).double()

    later = torch.ones(HORIZON, HORIZON).triu(1).bool()
    source = encoder(embedded(model.embedding.rows, x))
    repeated = torch.stack([x[:, -1]] * HORIZON, 1)
    rows = decoder(embedded(model.target_embedding.rows, repeated), source, tgt_mask=later)
    changes = rows @ model.head.logits.weight.T + model.head.logits.bias
    assert torch.allclose(model(Batch.of(x)), x[:, -1:] + changes, atol=1e-6)  # sinusoids are float32


def test_seq2seq_gives_the_last_values_plus_what_a_plain_loop_computes():
    """A GRU cell of torch on [last row; h̃], Luong's general attention and equation 5, window by window."""
    model, x = small("seq2seq(attention=general)", layers=1), window()
    rows, start = model.read(Batch.of(x))
    found = model(Batch.of(x))
    for b in range(B):
        y = model.target_embedding.rows.weight @ x[b, -1] + model.target_embedding.rows.bias
        state, tilde = start.hidden[b, 0], torch.zeros(DIM).double()
        for step in range(HORIZON):
            state = model.decoder.cells[0](torch.cat([y, tilde]), state)
            shares = torch.stack([state @ model.attentions[0].compare.weight[0] @ row for row in rows[b]]).softmax(0)
            tilde = torch.tanh(model.joins[0].map(torch.cat([shares @ rows[b], state])))
            expected = x[b, -1] + model.head.logits(tilde)
            assert torch.allclose(found[b, step], expected, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_the_forecast_knows_nothing_of_the_target_and_trains_every_weight(name):
    model, x = small(name), window()
    assert torch.equal(model(Batch.of(x, None, window(5)[:, :HORIZON])), model(Batch.of(x)))
    model.train()
    batch = Batch.of(x, None, window(5)[:, :HORIZON])
    loss, count = model.loss(model(batch), batch)
    loss.backward()
    assert int(count) == B * HORIZON * COLUMNS
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not [n for n in silent if not n.endswith("key_map.bias")], "the softmax cancels a bias of all keys"


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_its_windows_and_columns_may_see_each_other(name):
    model, x = small(name), window()
    found = model(Batch.of(x))
    assert found.shape == (B, HORIZON, COLUMNS)
    assert torch.allclose(torch.cat([model(Batch.of(one[None])) for one in x]), found)
    other = x.clone()
    other[:, 4, 1] += 1
    assert not torch.allclose(model(Batch.of(other))[:, :, 0], found[:, :, 0])


@pytest.mark.parametrize("name", NAMES)
def test_a_forecast_is_no_text_to_be_searched(name):
    with pytest.raises(RegardError, match="writes no sequences"):
        small(name).generate(Batch.of(window()))
