"""The key-value cache: any split into steps equals one call; states are immutable; beams can be reordered."""

import threading

import pytest
import torch

import regard
from regard import masks
from regard.nn import Cache, build
from regard.nn.parts.cache import Store

B, N, DIM = 3, 13, 12


def test_a_pairwise_mask_is_cut_to_the_keys_that_a_window_has_kept():
    layer = build("local(window=4, causal=True)", dim=DIM).double()
    x = torch.randn(B, N, DIM, dtype=torch.float64)
    pairs = torch.rand(N, N) > 0.4
    whole = layer(x, mask=pairs)
    state = layer.initial_state(B)
    for t in range(N):
        row, state = layer(x[:, t : t + 1], mask=pairs[t : t + 1, : t + 1], state=state)
        assert torch.allclose(row, whole[:, t : t + 1], atol=1e-12)


@pytest.mark.parametrize("grad", [True, False])
def test_a_window_keeps_no_more_than_its_size(grad):
    layer = build("local(window=4, causal=True)", dim=DIM)
    state = layer.initial_state(B)
    with torch.set_grad_enabled(grad):
        for _ in range(200):
            state = layer(torch.randn(B, 1, DIM), state=state)[1]
    assert state.keys.shape[2] <= 4
    assert state.seen == state.steps == 200
    if not grad:  # with gradients nothing is preallocated
        assert state.store.keys.shape[2] <= 4 + 64


def test_only_one_thread_may_extend_the_store_of_a_cache(monkeypatch):
    """Eight threads extend one state, each delayed between its reservation and its write."""
    threads, meeting = 8, threading.Barrier(8)
    taken, claims = [], Store.claims

    def slowly(store, end, new):
        meeting.wait(timeout=30)  # all threads reserve at once …
        found = claims(store, end, new)
        meeting.wait(timeout=30)  # … and none writes before all have an answer
        taken.append(found)
        return found

    layer = build("causal", dim=DIM).double()
    x = torch.randn(B, 5, DIM, dtype=torch.float64)
    rest = torch.randn(threads, B, 3, DIM, dtype=torch.float64)
    with torch.no_grad():
        expected = [layer(torch.cat([x, more], 1))[:, 5:] for more in rest]
        _, state = layer(x, state=layer.initial_state(B))
    monkeypatch.setattr(Store, "claims", slowly)
    found = [None] * threads

    def go_on(i):
        with torch.no_grad():
            found[i] = layer(rest[i], state=state)[0]

    started = [threading.Thread(target=go_on, args=(i,)) for i in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    assert sorted(taken) == [False] * 7 + [True]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


def test_keys_come_back_in_time_order():
    cache = Cache.empty(1, 1, 1, 1, window=3)
    with torch.no_grad():
        for t in range(50):
            new = torch.full((1, 1, 1, 1), float(t))
            cache = cache.extend(new, -new).cut()
            assert cache.keys.flatten().tolist() == [float(s) for s in range(max(0, t - 2), t + 1)]
            assert torch.equal(cache.values, -cache.keys)


def test_inference_mode_and_normal_mode_can_alternate():
    layer = build("causal", dim=DIM)
    x = torch.randn(B, 6, DIM)
    with torch.inference_mode():
        first, state = layer(x[:, :2], state=layer.initial_state(B))
        second, state = layer(x[:, 2:3], state=state)
    with torch.no_grad():
        third, state = layer(x[:, 3:4], state=state)
        fourth, state = layer(x[:, 4:], state=state)
        whole = layer(x)
    assert torch.allclose(torch.cat([first, second, third, fourth], 1), whole, atol=1e-5)


def test_cross_attention_projects_its_source_once():
    layer = build("multihead", dim=DIM, num_heads=2, source_dim=7).double()
    query, source = torch.randn(B, N, DIM, dtype=torch.float64), torch.randn(B, 5, 7, dtype=torch.float64)
    keep = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1]]).bool()
    source[~keep] = torch.inf
    whole = layer(query, source, mask=masks.padding(keep))
    first, state = layer(query[:, :4], source, mask=masks.padding(keep), state=layer.initial_state(B))
    calls = []
    layer.key_map.register_forward_hook(lambda *_: calls.append(1))
    second, state = layer(query[:, 4:5], source, state=state)  # the source may be passed again …
    third, state = layer(query[:, 5:], state=state)  # … or left out
    assert not calls
    assert torch.allclose(torch.cat([first, second, third], 1), whole, atol=1e-12)


def test_a_window_over_a_source_is_stepped_from_the_top_left():
    layer = build("local(window=3, align='top-left')", dim=DIM).double()
    query, source = torch.randn(B, 6, DIM, dtype=torch.float64), torch.randn(B, 8, DIM, dtype=torch.float64)
    whole = layer(query, source)
    assert (layer.weights(query, source)[0, 0, 2] > 0).tolist() == [False, True, True, True] + [False] * 4
    state, rows = layer.initial_state(B), []
    for t in range(6):
        row, state = layer(query[:, t : t + 1], source, state=state)
        rows.append(row)
    assert torch.allclose(torch.cat(rows, 1), whole, atol=1e-12)


def test_mistakes_with_states_are_explained():
    layer, x = build("global", dim=DIM), torch.randn(B, 4, DIM)
    with pytest.raises(regard.RegardError, match="causal=True"):
        layer(x, state=layer.initial_state(B))
    layer(x, mask=masks.causal(), state=layer.initial_state(B))
    causal = build("causal", dim=DIM)
    with pytest.raises(regard.RegardError, match="state: expected the result of initial_state"):
        causal(x, state=(1, 2))
    with pytest.raises(regard.RegardError, match="batch of 2"):
        causal(x, state=causal.initial_state(2))
    grown = causal(x, state=causal.initial_state(B))[1]
    with pytest.raises(regard.RegardError, match="state of its own"):
        layer(x, x, state=grown)
    fixed = layer(x, x, state=layer.initial_state(B))[1]
    with pytest.raises(regard.RegardError, match="length 4, got length 3"):
        layer(x, x[:, :3], state=fixed)
    with pytest.raises(regard.RegardError, match="top-left"):
        build("local(window=3)", dim=DIM)(x, x, state=layer.initial_state(B))
