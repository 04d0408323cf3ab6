"""Layers that see the positions of one rank give what they give for the whole sequence."""

import pytest
import torch

from regard import masks, nn, parallel
from regard.errors import RegardError
from regard.nn import positions
from regard.nn.sharing import current, sharing

LENGTH, DIM = 23, 12
LAYERS = {
    "rotary": ("causal", {"positions": "rotary", "kv_heads": 1}),
    "alibi": ("causal", {"positions": "alibi", "sink": True}),
    "t5": ("multihead", {"positions": "t5", "qk_norm": True}),
    "shaw": ("causal", {"positions": "shaw", "max_distance": 5}),
    "transformer-xl": ("causal", {"positions": "transformer-xl"}),
    "relative": ("relative", {"max_distance": 4}),
    "local": ("local", {"window": 7}),
}
ENCODINGS = ("sinusoidal", "learned", "half-wave")


def built(name):
    torch.manual_seed(2)
    if name in ENCODINGS:
        return positions.build(name, DIM, LENGTH).double()
    mechanism, options = LAYERS[name]
    return nn.build(mechanism, dim=DIM, num_heads=2, **options).double()


def run(name, exchange=None):
    """Output, gradient of the rows and of the weights: of the whole sequence, or of this rank's part of it."""
    layer = built(name)
    random = torch.Generator().manual_seed(4)
    whole, grad = torch.randn(2, 2, LENGTH, DIM, generator=random, dtype=torch.float64)
    keep = torch.arange(LENGTH) < torch.tensor([[LENGTH], [17]])
    if exchange is None:
        rows = whole.requires_grad_()
        output = layer(rows) if name in ENCODINGS else layer(rows, mask=masks.padding(keep))
    else:
        sequence = parallel.ShardedSequence(LENGTH)
        rows, grad = sequence.shard(whole, 1).requires_grad_(), sequence.shard(grad, 1)
        with sharing(sequence, masks.padding(keep), exchange):
            output = layer(rows)
        assert current() is None
    (output * grad).sum().backward()
    weights = [torch.zeros_like(one) if one.grad is None else one.grad for one in layer.parameters()]
    return [one.detach().numpy() for one in (output, rows.grad, *weights)]


@pytest.mark.parametrize(
    "name, exchange", [*((name, "ring") for name in (*LAYERS, *ENCODINGS)), ("alibi", "heads"), ("shaw", "heads")]
)
def test_a_layer_over_a_shared_sequence_equals_the_layer_over_the_whole(two, name, exchange):
    answers = two.run(run, name, exchange)
    layout = parallel.schedule.choose("zigzag", LENGTH, 2)
    for index, right in enumerate(run(name)):
        parts = [torch.from_numpy(answer[index]) for answer in answers]
        found = layout.join(parts, 1) if index < 2 else sum(parts)  # weights: each rank has its share
        torch.testing.assert_close(found, torch.from_numpy(right), rtol=1e-9, atol=1e-9)


def test_layers_whose_rows_meet_elsewhere_refuse_a_shared_sequence():
    sequence = parallel.ShardedSequence(7)
    rows = torch.randn(1, 7, DIM)
    for name, options in {"linear": {}, "hard": {}, "local-p": {}, "key-value-memory": {}, "additive": {}}.items():
        layer = nn.build(name, dim=DIM, **options)
        with sharing(sequence), pytest.raises(RegardError, match="several ranks share"):
            layer(rows)
    layer = nn.build("causal", dim=DIM)
    with sharing(sequence):
        with pytest.raises(RegardError, match="several ranks share"):
            layer(rows, rows)
        with pytest.raises(RegardError, match="without a state"):
            layer(rows, state=layer.initial_state(1))
    assert layer(rows).shape == rows.shape  # and outside of the block nothing has changed
