"""`hard`: choices, their distribution, and both gradient estimators, against formulas on dense arrays."""

import itertools
import math

import pytest
import torch

import regard
from regard import masks
from regard.formula.dropout import draw_seed
from regard.nn import build
from regard.nn.hard import Baseline, Choice, GumbelNoise, surrogate
from regard.nn.parts import loss_terms
from regard.values.grid import full_grid

B, Q, K, DIM, HEADS = 2, 3, 5, 12, 3
KEEP = torch.tensor([[True, True, False, True, True], [True, True, True, False, False]])
POSITIONS = [None, "rotary", "alibi", "t5", "shaw", "transformer-xl", "relative"]


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def made(**options):
    return build("hard", **{"dim": DIM, "num_heads": HEADS, **options}).double()


def close(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


def scored(layer, query, source, keep):
    """Scores (b,h,q,k), −inf where hidden, and values (b,h,k,d), from the layer's own projections."""
    q, k, v = (
        layer.split(m(x))
        for m, x in zip((layer.query_map, layer.key_map, layer.value_map), (query, source, source), strict=True)
    )
    scores = q @ k.mT / math.sqrt(layer.head_dim)
    return scores.masked_fill(~keep[:, None, None, :], -torch.inf), v


def put_together(layer, mixed):
    return layer.output_map(mixed.transpose(1, 2).flatten(2))


def test_evaluation_takes_the_best_key():
    layer, query, source = made().eval(), rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    scores, values = scored(layer, query, source, KEEP)
    mixed = torch.zeros(B, HEADS, Q, layer.head_dim, dtype=torch.float64)
    for b, h, i in itertools.product(range(B), range(HEADS), range(Q)):
        row = scores[b, h, i].tolist()
        best = row.index(max(row))
        mixed[b, h, i] = values[b, h, best]
    out = layer(query, source, mask=masks.padding(KEEP))
    close(out, put_together(layer, mixed))
    assert torch.equal(layer(query, source, mask=masks.padding(KEEP)), out)
    chosen, choice = layer.choose(query, source, mask=masks.padding(KEEP))
    close(chosen, out)
    assert torch.equal(choice.index, scores.argmax(-1))


def test_ties_go_to_the_lowest_index():
    layer, source = made().eval(), rows(B, K, DIM, seed=1)
    with torch.no_grad():
        layer.query_map.weight.zero_()
    keep = torch.tensor([[False, True, True, True, True], [True] * K])
    index = layer.choose(rows(B, Q, DIM), source, mask=masks.padding(keep))[1].index
    assert (index[0] == 1).all() and (index[1] == 0).all()


def test_in_evaluation_only_the_chosen_value_learns():
    layer, query, source = made().eval(), rows(B, Q, DIM).requires_grad_(), rows(B, K, DIM, seed=1)
    layer(query, source).sum().backward()
    assert (query.grad == 0).all()
    assert (layer.query_map.weight.grad == 0).all() and (layer.key_map.weight.grad == 0).all()
    assert (layer.value_map.weight.grad != 0).any()


def test_training_samples_from_the_softmax():
    layer, n = made(num_heads=1, dim=4), 20000
    query, source = rows(1, 1, 4), rows(1, K, 4, seed=1)
    _, choice = layer.choose(query.expand(n, -1, -1), source.expand(n, -1, -1))
    scores, _ = scored(layer, query, source, torch.ones(1, K, dtype=torch.bool))
    expected = scores[0, 0, 0].softmax(-1)
    found = torch.bincount(choice.index.flatten(), minlength=K) / n
    error = (expected * (1 - expected) / n).sqrt()
    assert ((found - expected).abs() < 4 * error).all()


def test_the_noise_is_gumbel_independent_and_follows_the_seed():
    sizes = (3, 5, 67, 101)
    noise = GumbelNoise(draw_seed(torch.device("cpu"))).values(full_grid(sizes, "cpu"), torch.float64)
    assert noise.shape == sizes and noise.isfinite().all()
    n = noise.numel()
    # Mean γ, variance π²/6; three shares of the distribution exp(−exp(−x)).
    assert abs(float(noise.mean()) - 0.5772156649) < 4 * math.pi / math.sqrt(6 * n)
    for x in (-1.0, 0.0, 3.0):
        share = math.exp(-math.exp(-x))
        assert abs(float((noise < x).double().mean()) - share) < 4 * math.sqrt(share * (1 - share) / n)
    for axis in range(4):
        a, b = (noise.narrow(axis, 0, sizes[axis] - 1).flatten(), noise.narrow(axis, 1, sizes[axis] - 1).flatten())
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 4 / math.sqrt(len(a))
    torch.manual_seed(7)
    first = GumbelNoise(draw_seed(torch.device("cpu")))
    torch.manual_seed(7)
    assert torch.equal(first.seed, draw_seed(torch.device("cpu")))
    part = full_grid(sizes, "cpu").part(rows=slice(9, 20), columns=slice(30, 77))
    complete = first.values(full_grid(sizes, "cpu"), torch.float32)
    assert torch.equal(first.values(part, torch.float32), complete[:, :, 9:20, 30:77])


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("length", [K, 401])  # 401: in several strips
def test_a_plain_call_uses_the_straight_through_gradient(length, temperature):
    layer = made(temperature=temperature)
    query, source = rows(B, length, DIM).requires_grad_(), rows(B, length, DIM, seed=1).requires_grad_()
    keep = torch.arange(length) < torch.tensor([[length], [length - 2]])
    torch.manual_seed(3)
    out = layer(query, source, mask=masks.padding(keep))
    torch.manual_seed(3)
    noise = GumbelNoise(draw_seed(torch.device("cpu"))).values(
        full_grid((B, HEADS, length, length), "cpu"), torch.float64
    )
    scores, values = scored(layer, query, source, keep)
    noisy = scores + noise
    one = torch.nn.functional.one_hot(noisy.argmax(-1), length).double()
    soft = torch.softmax(noisy / temperature, -1)
    straight = one @ values + (soft - soft.detach()) @ values.detach()
    expected = put_together(layer, straight)
    close(out, expected)
    upstream, leaves = rows(*out.shape, seed=4), [query, source, *layer.parameters()]
    found, wanted = (torch.autograd.grad(out, leaves, upstream), torch.autograd.grad(expected, leaves, upstream))
    for mine, theirs in zip(found, wanted, strict=True):
        close(mine, theirs, atol=1e-9)


@pytest.mark.parametrize("positions", POSITIONS)
def test_log_probabilities_and_entropies_are_those_of_the_softmax(positions):
    layer = made(positions=positions, max_distance=2) if positions else made(kv_heads=1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * rows(*parameter.shape, seed=8))
    query, source = rows(B, Q, DIM).requires_grad_(), rows(B, K, DIM, seed=1).requires_grad_()
    _, choice = layer.choose(query, source, mask=masks.padding(KEEP))
    # The same scores under the softmax of a multihead layer.
    soft = build("multihead", dim=DIM, num_heads=HEADS, positions=positions, max_distance=2, kv_heads=layer.kv_heads)
    soft.double().load_state_dict(layer.state_dict())
    leaves = [query, source, *soft.parameters()]
    weights = soft.weights(query, source, mask=masks.padding(KEEP))
    log_prob = weights.gather(-1, choice.index[..., None])[..., 0].log()
    entropy = torch.special.entr(weights.clamp(min=1e-300)).sum(-1)
    close(choice.log_prob, log_prob)
    close(choice.entropy, entropy)
    upstream = rows(*log_prob.shape, seed=4)
    mine, theirs = [query, source, *layer.parameters()], leaves
    for found, expected in ((choice.log_prob, log_prob), (choice.entropy, entropy)):
        got = torch.autograd.grad(found, mine, upstream, retain_graph=True, allow_unused=True)
        want = torch.autograd.grad(expected, theirs, upstream, retain_graph=True, allow_unused=True)
        assert [a is None for a in got] == [b is None for b in want]
        for a, b in zip(got, want, strict=True):
            if a is not None:
                close(a, b, atol=1e-10)


def test_log_probabilities_of_a_long_source_are_computed_in_strips():
    layer, n = made(), 307
    query, source = rows(B, n, DIM).requires_grad_(), rows(B, n, DIM, seed=1)
    out, choice = layer.choose(query, source)
    scores, values = scored(layer, query, source, torch.ones(B, n, dtype=torch.bool))
    logs = scores.log_softmax(-1)
    close(choice.log_prob, logs.gather(-1, choice.index[..., None])[..., 0])
    close(choice.entropy, -(logs.exp() * logs).sum(-1))
    mixed = values.gather(2, choice.index[..., None].expand(-1, -1, -1, layer.head_dim))
    close(out, put_together(layer, mixed))


def test_equal_scores_have_the_entropy_of_the_uniform_distribution():
    layer, source = made(), rows(B, K, DIM)
    with torch.no_grad():
        layer.query_map.weight.zero_()
    choice = layer.choose(rows(B, Q, DIM), source, mask=masks.lengths(torch.tensor([5, 1])))[1]
    close(choice.entropy[0], torch.full((HEADS, Q), math.log(5), dtype=torch.float64))
    close(choice.log_prob[0], torch.full((HEADS, Q), -math.log(5), dtype=torch.float64))
    close(choice.entropy[1], torch.zeros(HEADS, Q, dtype=torch.float64))


@pytest.mark.parametrize("training", [True, False])
def test_a_query_without_visible_keys_chooses_nothing(training):
    layer = made(bias=False).train(training)
    query, source = rows(B, Q, DIM).requires_grad_(), rows(B, K, DIM, seed=1)
    source[1] = torch.nan
    mask = masks.lengths(torch.tensor([K, 0]))
    out, choice = layer.choose(query, source, mask=mask)
    assert (out[1] == 0).all() and (layer(query, source, mask=mask)[1] == 0).all()
    assert (choice.index[1] == -1).all() and (choice.index[0] >= 0).all()
    assert (choice.log_prob[1] == 0).all() and (choice.entropy[1] == 0).all()
    loss = surrogate(choice, torch.ones(B, dtype=torch.float64), 0.0, 0.1) + out.sum()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in layer.parameters()) and query.grad.isfinite().all()
    for b, q, k in ((0, Q, K), (B, 0, K), (B, Q, 0)):
        out, choice = layer.choose(rows(b, q, DIM), rows(b, k, DIM))
        assert out.shape == (b, q, DIM) and choice.index.shape == (b, HEADS, q)
        assert surrogate(choice, torch.ones(b), 0.0, 0.1).isfinite()


def test_a_non_finite_query_shows():
    layer, query, source = made(), rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    query[0, 1] = torch.nan
    out, choice = layer.choose(query, source)
    assert out[0, 1].isnan().all() and choice.log_prob[0, :, 1].isnan().all() and choice.entropy[0, :, 1].isnan().all()
    assert out[1].isfinite().all() and out[0, [0, 2]].isfinite().all()


def test_choices_can_be_repeated():
    layer, query, source = made(), rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    out, choice = layer.choose(query, source)
    again, same = layer.choose(query, source, index=choice.index)
    assert torch.equal(same.index, choice.index)
    close(again, out)
    close(same.log_prob, choice.log_prob)
    with pytest.raises(regard.RegardError, match="index"):
        layer.choose(query, source, index=choice.index[0])


def tiny():
    """Two queries, three keys, and a reward for each of the nine choices."""
    layer = made(dim=2, num_heads=1)
    table = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0], [0.25, 2.0, -0.5]], dtype=torch.float64)
    return layer, rows(1, 2, 2), rows(1, 3, 2, seed=1), table


def exact(layer, query, source, table):
    """The expected reward's gradient, and for each choice its probability and the estimate it gives."""
    leaves = [layer.query_map.weight, layer.key_map.weight]
    scores, _ = scored(layer, query, source, torch.ones(1, 3, dtype=torch.bool))
    p = scores.softmax(-1)[0, 0]  # (2,3)
    expected = torch.autograd.grad((p[0][:, None] * p[1][None] * table).sum(), leaves, retain_graph=True)
    found = {}
    for pair in itertools.product(range(3), range(3)):
        _, choice = layer.choose(query, source, index=torch.tensor(pair)[None, None])
        term = surrogate(choice, table[pair][None], 0.7)
        grads = torch.autograd.grad(term, leaves, retain_graph=True)
        found[pair] = (float((p[0, pair[0]] * p[1, pair[1]]).detach()), torch.cat([g.flatten() for g in grads]))
    return torch.cat([g.flatten() for g in expected]), found


def test_the_score_function_estimate_is_unbiased_by_enumeration():
    expected, found = exact(*tiny())
    assert sum(p for p, _ in found.values()) == pytest.approx(1)
    # The term is minimised, so its gradient is that of −E[reward]; the baseline of 0.7 changes nothing.
    close(sum(p * g for p, g in found.values()), -expected)


def test_the_mean_of_many_samples_approaches_the_exact_gradient():
    layer, query, source, table = tiny()
    expected, found = exact(layer, query, source, table)
    n = 20000
    _, choice = layer.choose(query.expand(n, -1, -1), source.expand(n, -1, -1))
    reward = table[choice.index[:, 0, 0], choice.index[:, 0, 1]]
    term = surrogate(choice, reward, 0.7)
    grads = torch.autograd.grad(term, [layer.query_map.weight, layer.key_map.weight])
    sample = torch.cat([g.flatten() for g in grads])
    variance = sum(p * (g + expected) ** 2 for p, g in found.values())
    assert ((sample + expected).abs() <= 4 * (variance / n).sqrt() + 1e-12).all()
    assert (variance > 1e-3).any() and (sample.abs() > 10 * (variance / n).sqrt()).any(), "the test can tell"


@pytest.mark.parametrize("length", [K, 307])  # 307: in strips
def test_a_share_of_the_queries_receives_the_mean_and_the_others_a_choice(length):
    layer = made(estimator="reinforce", soft_share=0.3, entropy_weight=0.0)
    query, source = rows(B, 41, DIM), rows(B, length, DIM, seed=1)
    layer.output = lambda mixed: mixed
    with loss_terms.collecting() as terms:
        out = layer(query, source)
    scores, values = scored(layer, query, source, torch.ones(B, length, dtype=torch.bool))
    mean, distance = scores.softmax(-1) @ values, (out[..., None, :] - values[:, :, None]).abs().amax(-1)
    soft, hard = (out - mean).abs().amax(-1) < 1e-9, distance.amin(-1) < 1e-9
    assert (soft ^ hard).all()
    assert abs(float(soft.double().mean()) - 0.3) < 4 * math.sqrt(0.21 / soft.numel())
    # Losses of 1 and 3 without a baseline: the sum of log-probabilities of the choices alone, weighted by them.
    logs = scores.log_softmax(-1).gather(-1, distance.argmin(-1, keepdim=True))[..., 0]
    expected = logs.masked_fill(soft, 0).sum((1, 2)) @ torch.tensor([1.0, 3.0], dtype=torch.float64)
    close(terms[0](torch.tensor([1.0, 3.0]).double(), torch.ones(2).double()), expected, atol=1e-9)
    for options in ({"soft_share": 1.0, "estimator": "reinforce"}, {"soft_share": 0.5}):
        with pytest.raises(regard.RegardError, match="soft_share: expected a number"):
            made(**options)


def test_the_surrogate_by_hand():
    log_prob = torch.tensor([[[-1.0, -2.0]], [[-0.5, 0.0]]], requires_grad=True)
    entropy = torch.tensor([[[0.3, 0.5]], [[0.7, 0.0]]], requires_grad=True)
    choice = Choice(torch.tensor([[[0, 1]], [[2, -1]]]), log_prob, entropy)
    # Σ log p = −3 and −0.5; rewards 2 and 1 less 0.5: mean of 1.5·−3 and 0.5·−0.5 = −2.375. Three queries have a
    # choice, so the mean entropy is 0.5. −(−2.375) − 0.1·0.5 = 2.325.
    reward = torch.tensor([2.0, 1.0], requires_grad=True)
    found = surrogate(choice, reward, 0.5, 0.1)
    assert float(found.detach()) == pytest.approx(2.325)
    found.backward()
    close(log_prob.grad, torch.tensor([[[-0.75, -0.75]], [[-0.25, -0.25]]]))
    assert reward.grad is None, "a reward is no way for gradient"
    per_entry = surrogate(choice, reward, torch.tensor([2.0, 0.0]))
    assert float(per_entry.detach()) == pytest.approx(0.25)


def test_a_baseline_is_the_moving_average_of_earlier_rewards():
    baseline = Baseline(decay=0.9)
    assert list(baseline.state_dict()) == ["average"] and not list(baseline.parameters())
    assert float(baseline(torch.tensor([1.0, 3.0]))) == 0
    assert float(baseline(torch.tensor([4.0]))) == pytest.approx(0.2)
    baseline.eval()
    assert float(baseline(torch.tensor([100.0]))) == pytest.approx(0.58)
    assert float(baseline(torch.tensor([100.0]))) == pytest.approx(0.58)
    baseline.train()(torch.tensor([torch.nan]))
    baseline(torch.zeros(0))
    assert float(baseline.average) == pytest.approx(0.58)
    choice = Choice(torch.zeros(2, 1, 1).long(), -torch.ones(2, 1, 1), torch.zeros(2, 1, 1))
    # (1 − 0.58 + 2 − 0.58) / 2 = 0.92, and then 0.58 → 0.9·0.58 + 0.1·1.5.
    assert float(surrogate(choice, torch.tensor([1.0, 2.0]), baseline)) == pytest.approx(0.92)
    assert float(baseline.average) == pytest.approx(0.672)
    for wrong in (1.0, -0.1, "much"):
        with pytest.raises(regard.RegardError, match="decay"):
            Baseline(wrong)


def test_wrong_rewards_and_baselines_are_named():
    choice = Choice(torch.zeros(2, 1, 1).long(), -torch.ones(2, 1, 1), torch.zeros(2, 1, 1))
    for wrong in (torch.ones(3), torch.ones(2, 1), torch.ones(2).long(), 1.0):
        with pytest.raises(regard.RegardError, match="reward"):
            surrogate(choice, wrong, 0.0, 0.0)
    for wrong in (torch.ones(2, 1), "none"):
        with pytest.raises(regard.RegardError, match="baseline"):
            surrogate(choice, torch.ones(2), wrong, 0.0)
    for name, wrong in (("temperature", 0), ("temperature", math.nan), ("normalize", "softmax")):
        with pytest.raises(regard.RegardError, match=name):
            build("hard", dim=DIM, **{name: wrong})


def test_dropped_choices_are_zero_and_the_others_are_scaled_up():
    layer, query, source = made(dropout=0.5, bias=False), rows(B, 97, DIM), rows(B, K, DIM, seed=1)
    with torch.no_grad():
        layer.output_map.weight.copy_(torch.eye(DIM))
    for out in (layer(query, source), layer.choose(query, source)[0]):
        values = layer.split(layer.value_map(source)) * 2
        heads = layer.split(out)
        hit = (heads[..., None, :] - values[:, :, None]).abs().amax(-1).amin(-1) < 1e-9
        gone = heads.abs().amax(-1) == 0
        assert (hit | gone).all() and 0.4 < float(gone.double().mean()) < 0.6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_stays_finite(dtype):
    layer, query, source = (build("hard", dim=8, num_heads=2), rows(B, Q, 8).float(), rows(B, 300, 8).float() * 5)
    with torch.autocast("cpu", dtype):
        plain, (out, choice) = layer(query, source), layer.choose(query, source)
        term = surrogate(choice, torch.ones(B), 0.0, 0.1)
    (plain.float().sum() + out.float().sum() + term).backward()
    assert choice.log_prob.dtype == torch.float32 and choice.index.max() > 256
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_sampling_compiles_to_one_graph():
    layer, query, source = made(), rows(B, Q, DIM), rows(B, K, DIM, seed=1)
    assert torch.compile(layer, fullgraph=True, backend="eager")(query, source).isfinite().all()
