"""Recurrent layers one by one: the same bits as torch's own, dropout, packing and gradients included."""

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from regard_workbench.models.parts import recurrent, recurrent_layers
from regard_workbench.models.parts.recurrent import CELLS, Recurrent, uses_dropout_of_cudnn
from regard_workbench.models.parts.recurrent_layers import by_layers


def tensors(found):
    """The tensors of an output or a memory."""
    if isinstance(found, PackedSequence):
        return [found.data]
    return [found] if isinstance(found, torch.Tensor) else list(found)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("lengths", [None, [5, 1, 7], [7, 7, 3]])
@pytest.mark.parametrize("begun", [False, True])
def test_layers_one_by_one_equal_torchs_own(cell, both, lengths, begun):
    torch.manual_seed(3)
    cells = CELLS[cell](11, 5, 3, batch_first=True, bidirectional=both, dropout=0.3)
    given = torch.randn(3, 7, 11)
    before = None
    if begun:
        first = [torch.randn(6 if both else 3, 3, 5) for _ in range(2)]
        before = tuple(first) if cell == "lstm" else first[0]
    runs = []
    for run in (cells, lambda *parts: by_layers(cells, *parts)):
        cells.zero_grad()
        rows = given.clone().requires_grad_()
        packed = (
            rows
            if lengths is None
            else pack_padded_sequence(rows, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        )
        torch.manual_seed(17)
        found, after = run(packed, before)
        found = [*tensors(found), *tensors(after)]
        sum((each * (number + 1)).square().sum() for number, each in enumerate(found)).backward()
        runs.append([*found, torch.rand(3), rows.grad, *(p.grad.clone() for p in cells.parameters())])
    assert len(runs[0]) == len(runs[1]) and all(map(torch.equal, *runs))


def test_only_what_cudnn_would_draw_is_done_layer_by_layer(monkeypatch):
    rows, on_gpu = torch.zeros(2, 3, 6), type("Rows", (), {"is_cuda": True})()
    layers = Recurrent(6, 2, dropout=0.1)
    assert uses_dropout_of_cudnn(layers.cells, on_gpu) and not uses_dropout_of_cudnn(layers.cells, rows)
    for other in (Recurrent(6, 1, dropout=0.1), Recurrent(6, 2), Recurrent(6, 2, dropout=0.1).eval()):
        assert not uses_dropout_of_cudnn(other.cells, on_gpu)
    called = []
    monkeypatch.setattr(recurrent, "uses_dropout_of_cudnn", lambda cells, rows: True)
    monkeypatch.setattr(recurrent_layers, "by_layers", lambda *given: called.append(given) or by_layers(*given))
    keep = torch.tensor([[True, True, False], [True, True, True]])
    for mask in (None, keep):
        torch.manual_seed(5)
        found, state = layers(rows, mask)
        assert found.shape == (2, 3, 6) and state.hidden.shape == (2, 2, 6)
    assert len(called) == 2
