"""Rollout and flow against the formulas written out: products of whole matrices, all cuts of a small network."""

import itertools

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard.observation.analysis import sites
from regard.observation.analysis.flow import flow
from regard.observation.analysis.rollout import rollout
from tests.observation.maps import Map, Maps, soft

N = 13


def model(layers=3, heads=5, n=N, causal=False, batch=2):
    return Maps(*(Map(soft(batch, heads, n, n, causal=causal, sharp=2.0), name=f"layer.{i}") for i in range(layers)))


def whole(seen, heads="mean", residual=0.5, batch=0, names=None):
    """The product of whole matrices, in numpy."""
    product = None
    for name in names or seen.names():
        own = seen[name].given[-1][batch].double().numpy()
        table = {"mean": own.mean(0), "max": own.max(0), "min": own.min(0)}[heads]
        table = table / table.sum(1, keepdims=True)
        table = residual * np.eye(len(table)) + (1 - residual) * table
        product = table if product is None else table @ product
    return torch.from_numpy(product)


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("residual", [0.5, 0.0, 0.3])
def test_rollout_is_the_product_of_the_layers(heads, causal, residual):
    seen = model(causal=causal)
    found = rollout(seen, heads=heads, residual=residual, batch=1)
    assert torch.allclose(found, whole(seen, heads, residual, 1), atol=1e-12)
    assert torch.allclose(found.sum(1), torch.ones(N, dtype=torch.float64))
    some = rollout(seen, [-1, 3], heads=heads, residual=residual, batch=1)
    assert torch.allclose(some, found[[12, 3]], atol=1e-15)


def test_rollout_of_two_positions_worked_by_hand():
    first = torch.tensor([[[[1.0, 0.0], [0.5, 0.5]]]])
    second = torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]])
    seen = Maps(Map(first, name="a"), Map(second, name="b"))
    # Â_1 = [[1, 0], [¼, ¾]], Â_2 = [[1, 0], [½, ½]]: row 1 is ½·(1, 0) + ½·(¼, ¾).
    assert rollout(seen).tolist() == [[1.0, 0.0], [0.625, 0.375]]
    assert rollout(seen, [1], layers=["b"]).tolist() == [[0.5, 0.5]]


def test_layers_are_chosen_by_name_by_path_and_in_order():
    seen = model(4)
    names = ["layer.2", "layer.0"]
    assert torch.allclose(rollout(seen, layers=names), whole(seen, names=names), atol=1e-12)
    both = Maps(
        Map(soft(1, 2, 7, 7), name="encoder.0"),
        Map(soft(1, 2, 7, 7), name="encoder.1"),
        Map(soft(1, 2, 7, 7), name="decoder.0.self"),
        Map(soft(1, 2, 7, 7), name="decoder.0.cross"),
    )
    expected = whole(both, names=["encoder.0", "encoder.1"])
    assert torch.allclose(rollout(both, layers="encoder"), expected, atol=1e-12)
    unclear = Maps(Map(soft(1, 2, 7, 7), name="a.self"), Map(soft(1, 2, 7, 7), name="b.cross"))
    with pytest.raises(BadValue, match="such as 'encoder'"):
        rollout(unclear)


def test_a_row_without_weight_is_the_identity():
    weights = soft(1, 2, 5, 5)
    weights[:, :, 3] = 0
    found = rollout(Maps(Map(weights)))
    assert found[3].tolist() == [0, 0, 0, 1, 0]


def test_one_position_of_a_long_input_takes_memory_linear_in_its_length(monkeypatch):
    monkeypatch.setattr(sites, "BLOCK", 1 << 14)
    seen = model(2, 2, 509, causal=True, batch=1)
    found = rollout(seen, [508, 7])
    assert torch.allclose(found, whole(seen)[[508, 7]], atol=1e-12)
    assert all(seen[name].largest <= 1 << 14 for name in seen.names())


def test_the_steps_of_a_generation_roll_out_like_the_whole():
    seen = model(causal=True, batch=1)
    steps = Maps(
        *(
            Map(one[:, :, :4, :4], *(one[:, :, i : i + 1, : i + 1] for i in range(4, N)), name=name)
            for name in seen.names()
            for one in seen[name].given
        )
    )
    assert torch.allclose(rollout(steps, [-1], call=None), rollout(seen, [-1]), atol=1e-12)
    with pytest.raises(BadValue, match="call=None joins"):
        rollout(steps)


def test_layers_that_cannot_be_rolled_out_are_refused():
    seen = model()
    with pytest.raises(BadValue, match="rows: expected numbers from -13 to 12"):
        rollout(seen, [13])
    with pytest.raises(BadValue, match=r"Did you mean 'layer\.0'"):
        rollout(seen, layers=["layer.00"])
    with pytest.raises(BadValue, match="Did you mean 'mean'"):
        rollout(seen, heads="meen")
    with pytest.raises(BadValue, match="residual"):
        rollout(seen, residual=1.5)
    with pytest.raises(BadValue, match="nothing"):
        rollout(Maps())
    with pytest.raises(BadValue, match="7×11"):
        rollout(Maps(Map(soft(1, 1, 7, 11), name="b")))
    long = Maps(Map(torch.empty(1, 1, 1, 1).expand(1, 1, 5003, 5003)))
    with pytest.raises(BadValue, match="rows: expected some of 5003 positions"):
        rollout(long)
    with pytest.raises(BadValue, match="rollout, which takes any length"):
        flow(long, [0])


def least_cut(tables, start, end):
    """The minimum cut over all ways to divide the nodes between start and end."""
    n, best = len(tables[0]), np.inf
    inner = [(layer, i) for layer in range(1, len(tables)) for i in range(n)]
    for chosen in itertools.product((False, True), repeat=len(inner)):
        near = {(0, start), *(node for node, kept in zip(inner, chosen, strict=True) if kept)}
        cost = 0.0
        for layer, table in enumerate(tables):
            for i in range(n):
                if (layer, i) in near:
                    cost += sum(table[i, j] for j in range(n) if (layer + 1, j) not in near)
        # Edges to other inputs are not cut: only `end` is the sink, and other inputs have no outgoing edges.
        last = tables[-1]
        cost -= sum(last[i, j] for i in range(n) if (len(tables) - 1, i) in near for j in range(n) if j != end)
        best = min(best, cost)
    return best


@pytest.mark.parametrize(("layers", "n", "causal"), [(1, 5, False), (2, 7, False), (3, 5, True), (3, 3, False)])
def test_flow_is_the_minimum_cut(layers, n, causal):
    seen = model(layers, 2, n, causal=causal, batch=1)
    tables = []
    for name in reversed(seen.names()):
        own = seen[name].given[-1][0].double().mean(0).numpy()
        tables.append(0.4 * np.eye(n) + 0.6 * own / own.sum(1, keepdims=True))
    found = flow(seen, residual=0.4)
    expected = [[least_cut(tables, i, j) for j in range(n)] for i in range(n)]
    assert torch.allclose(found, torch.tensor(expected, dtype=torch.float64), atol=1e-7)
    part = flow(seen, [n - 1], [0, 2], residual=0.4)
    assert torch.equal(part, found[[n - 1]][:, [0, 2]])


def test_flow_is_never_less_than_rollout():
    """Rollout is one feasible flow."""
    seen = model(3, 3, 11, batch=1)
    assert bool((flow(seen) >= rollout(seen) - 1e-6).all())


def translator(t=5, n=7, residual=0.5):
    """An encoder of two layers and a decoder of two, as random maps."""
    return Maps(
        Map(soft(2, 3, n, n), name="encoder.layers.0.self_attn"),
        Map(soft(2, 3, n, n), name="encoder.layers.1.self_attn"),
        Map(soft(2, 3, t, t, causal=True), name="decoder.layers.0.self_attn"),
        Map(soft(2, 3, t, n), name="decoder.layers.0.multihead_attn"),
        Map(soft(2, 3, t, t, causal=True), name="decoder.layers.1.self_attn"),
        Map(soft(2, 3, t, n), name="decoder.layers.1.multihead_attn"),
    )


def block_matrices(seen, residual, batch=0):
    """Each site as one matrix over the decoder's and the encoder's rows together, from the first to the last."""
    t, n = seen["decoder.layers.0.multihead_attn"].given[0].shape[2:]
    for name in seen.names():
        table, own = np.eye(t + n), seen[name].given[0][batch].double().numpy().mean(0)
        mixed = (1 - residual) * own
        if name.startswith("encoder"):
            table[t:, t:] = residual * np.eye(n) + mixed
        elif "multihead" in name:
            table[:t, :t], table[:t, t:] = residual * np.eye(t), mixed
        else:
            table[:t, :t] = residual * np.eye(t) + mixed
        yield table


@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_rollout_through_encoder_and_decoder_is_the_product_of_block_matrices(residual):
    seen = translator()
    product = np.eye(12)
    for table in block_matrices(seen, residual, batch=1):
        product = table @ product
    found = rollout(seen, residual=residual, batch=1)
    assert found.shape == (5, 12)
    np.testing.assert_allclose(found.numpy(), product[:5], atol=1e-12)
    np.testing.assert_allclose(found.sum(1).numpy(), 1, atol=1e-12)
    np.testing.assert_allclose(rollout(seen, [-1], residual=residual, batch=1).numpy(), product[4:5], atol=1e-12)


def test_flow_through_encoder_and_decoder_is_the_minimum_cut():
    torch.manual_seed(5)
    t, n = 2, 2
    seen = Maps(
        Map(soft(1, 1, n, n, sharp=2.0), name="encoder.0"),
        Map(soft(1, 1, t, t, sharp=2.0), name="decoder.0.self"),
        Map(soft(1, 1, t, n, sharp=2.0), name="decoder.0.cross"),
    )
    encoder, own, cross = (0.5 * seen[name].given[0][0, 0].double().numpy() for name in seen.names())
    # Nodes: decoder after cross (0, 1), after self (2, 3), read by the decoder (4, 5), encoded (6, 7), read (8, 9).
    edges = {(i, 2 + i): 0.5 for i in range(2)} | {(i, 6 + j): cross[i, j] for i in range(2) for j in range(2)}
    for i, j in itertools.product(range(2), range(2)):
        edges[2 + i, 4 + j] = own[i, j] + 0.5 * (i == j)
        edges[6 + i, 8 + j] = encoder[i, j] + 0.5 * (i == j)

    def cut(start, end):
        inner = [node for node in range(10) if node not in (start, end)]
        sets = (set(kept) | {start} for k in range(9) for kept in itertools.combinations(inner, k))
        return min(sum(w for (a, b), w in edges.items() if a in side and b not in side) for side in sets)

    found = flow(seen)
    for row in range(2):
        for key, node in enumerate((4, 5, 8, 9)):
            assert found[row, key] == pytest.approx(cut(row, node), abs=1e-7)


def test_a_decoder_row_that_attends_to_no_source_keeps_its_own_rows():
    seen = translator()
    seen["decoder.layers.1.multihead_attn"].given[0][:, :, 2] = 0
    seen["decoder.layers.0.multihead_attn"].given[0][:, :, :3] = 0
    found = rollout(seen)
    assert found[2, 5:].sum() == 0 and found[2].sum() == pytest.approx(1)


def test_steps_of_a_decoder_roll_out_like_one_pass():
    seen = translator()
    steps = Maps(
        *(
            Map(*(w[:, :, i : i + 1, : (i + 1 if "self" in name else None)] for i in range(5)), name=name)
            if name.startswith("decoder")
            else Map(w, name=name)
            for name in seen.names()
            for w in [seen[name].given[0]]
        )
    )
    np.testing.assert_allclose(rollout(steps, call=None).numpy(), rollout(seen).numpy(), atol=1e-12)
    with pytest.raises(BadValue, match="do not fit together"):
        rollout(steps, call=3)
