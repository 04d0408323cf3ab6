"""Attention over a shared sequence equals that of one process, forward and backward, for every mask."""

import math

import pytest
import torch

import regard
from regard import biases, masks, parallel, scores
from regard.parallel import schedule
from tests import oracle
from tests.parallel.cases import CASES, HEADS, LENGTH, WIDTH, inputs, visible

EXCHANGES = ("ring", "heads")
NAMES = ("output", "logsumexp", "query", "key", "value")


def _arrays(tensors):
    return [tensor.detach().cpu().numpy() for tensor in tensors]


def shared(layout, exchange, case, options, dtype=torch.float64, device="cpu"):
    """In a rank: output, log-sum-exp and gradients of its positions."""
    given = inputs(dtype=dtype)
    mask = CASES[case][0]
    sequence = parallel.ShardedSequence(LENGTH, layout=layout, mask=mask)
    local = [sequence.shard(one, 2).to(device).requires_grad_() for one in (given.query, given.key, given.value)]
    output, logsumexp = parallel.attend(
        *local, sequence, mask=mask, exchange=exchange, return_logsumexp=True, **options
    )
    seen = torch.where(logsumexp == -math.inf, 0, logsumexp)
    total = (output * sequence.shard(given.grad, 2).to(device)).sum() + (
        seen * sequence.shard(given.grad_logsumexp, 2).to(device)
    ).sum()
    total.backward()
    return _arrays([output, logsumexp, *(one.grad for one in local)])


def joined(answers, layout, case, count):
    """The whole tensors from the answers of all ranks."""
    mask = CASES[case][0]
    chosen = schedule.choose(layout, LENGTH, count, mask)
    return [chosen.join([torch.from_numpy(answer[index]) for answer in answers], 2) for index in range(len(answers[0]))]


def by_formula(case, dtype=torch.float64):
    """The same by softmax(QKᵀ/√d) V over a mask that was written out pair by pair."""
    given = inputs(dtype=dtype)
    local = [one.requires_grad_() for one in (given.query, given.key, given.value)]
    query, key, value = local[0], *(oracle.expand_heads(one, HEADS) for one in local[1:])
    seen = visible(case)
    scores_of_pairs = (query @ key.mT / math.sqrt(WIDTH)).masked_fill(~seen, -math.inf)
    empty = ~seen.any(-1)
    filled = scores_of_pairs.masked_fill(empty[..., None], 0)
    output = (filled.softmax(-1) @ value).masked_fill(empty[..., None], 0)
    logsumexp = filled.logsumexp(-1).masked_fill(empty, 0)
    ((output * given.grad).sum() + (logsumexp * given.grad_logsumexp).sum()).backward()
    return [output.detach(), logsumexp.detach().masked_fill(empty, -math.inf), *(one.grad for one in local)]


@pytest.fixture(scope="module")
def expected():
    return {case: by_formula(case) for case in CASES}


SETTINGS = [
    (2, "zigzag", "ring"),
    (4, "zigzag", "ring"),
    (2, "zigzag", "heads"),
    *(
        pytest.param(*one, marks=pytest.mark.slow)
        for one in (
            (4, "zigzag", "heads"),
            (2, "contiguous", "ring"),
            (4, "contiguous", "ring"),
            (4, "contiguous", "heads"),
            (4, "balanced", "ring"),
        )
    ),
]


@pytest.mark.parametrize("count, layout, exchange", SETTINGS)
@pytest.mark.parametrize("case", CASES)
def test_every_mask_gives_the_numbers_of_one_process_forward_and_backward(
    pairs_and_fours, expected, case, count, layout, exchange
):
    found = joined(pairs_and_fours(count).run(shared, layout, exchange, case, {}), layout, case, count)
    for name, ours, right in zip(NAMES, found, expected[case], strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def test_an_implementation_without_a_backward_of_shares_computes_blocks_again(two, expected):
    found = joined(two.run(shared, "zigzag", "ring", "prefix", {"impl": "reference"}), "zigzag", "prefix", 2)
    for ours, right in zip(found, expected["prefix"], strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-11, atol=1e-11)


def test_float32_is_as_exact_as_the_formula_in_one_process(ranks, expected):
    """Promise 7: at most twice the error of the plain formula (gradients: three times), for a row of any length."""
    found = joined(ranks.run(shared, "zigzag", "ring", "causal", {}, torch.float32), "zigzag", "causal", ranks.count)
    plain = by_formula("causal", torch.float32)
    for name, ours, theirs, right in zip(NAMES, found, plain, expected["causal"], strict=True):
        factor = 2 if name in ("output", "logsumexp") else 3
        allowed = factor * (theirs.double() - right).abs().max() + torch.finfo(torch.float32).eps * right.abs().max()
        assert (ours.double() - right).abs().max() <= allowed, name


def pieces(name):
    """Options of `attend` with tensors of their own, made anew in each process."""
    random = torch.Generator().manual_seed(11)

    def draw(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64).requires_grad_()

    tensors = []
    if name == "alibi":
        options = {"bias": biases.alibi(HEADS)}
    elif name == "table":
        tensors = [draw(HEADS, 11)]
        options = {"bias": biases.relative(*tensors)}
    elif name == "t5-and-dense":
        tensors = [draw(8, HEADS), draw(2, 1, LENGTH, LENGTH)]
        options = {"bias": biases.t5(tensors[0], max_distance=16) + biases.dense(tensors[1])}
    elif name == "gaussian":
        tensors = [draw(2, HEADS, LENGTH)]
        options = {"bias": biases.gaussian(tensors[0] * 9 + 18, 2.5)}
    elif name == "softcap":
        options = {"score": scores.softcap(0.7)}
    elif name == "cosine":
        options = {"score": scores.cosine(3.0)}
    elif name == "cosine-by-query":
        tensors = [draw(2, HEADS, LENGTH, 1)]
        options = {"score": scores.cosine(*tensors)}
    elif name == "general":
        tensors = [draw(HEADS, WIDTH, WIDTH)]
        options = {"score": scores.general(*tensors)}
    elif name == "additive":
        tensors = [draw(HEADS, WIDTH)]
        options = {"score": scores.additive(*tensors)}
    elif name == "shaw":
        tensors = [draw(HEADS, 9, WIDTH)]
        options = {"score": scores.shaw(*tensors)}
    elif name == "transformer-xl":
        tensors = [draw(WIDTH), draw(HEADS, WIDTH), draw(13, WIDTH)]
        options = {"score": scores.transformer_xl(*tensors)}
    elif name == "sink":
        tensors = [draw(HEADS)]
        options = {"sink": tensors[0]}
    elif name == "sigmoid":
        tensors = [draw(HEADS)]
        options = {"normalize": "sigmoid", "sink": tensors[0], "scale": -0.3}
    else:
        options = {"normalize": name}
    return options, tensors


PIECES = (
    "alibi",
    "table",
    "t5-and-dense",
    "gaussian",
    "softcap",
    "cosine",
    "cosine-by-query",
    "general",
    "additive",
    "shaw",
    "transformer-xl",
    "sink",
    "sigmoid",
)
ROWS = ("sparsemax", "entmax15", "hard")


def shared_pieces(name, exchange, layout):
    """In a rank: output and gradients of its positions, and its share of the gradients of the tensors."""
    options, tensors = pieces(name)
    sequence = parallel.ShardedSequence(LENGTH, layout=layout)
    return _run_pieces(tensors, sequence, mask=masks.window(9, 2), exchange=exchange, **options)


def _run_pieces(tensors, sequence, **options):
    given = inputs()
    local = [one if sequence is None else sequence.shard(one, 2) for one in (given.query, given.key, given.value)]
    local = [one.requires_grad_() for one in local]
    if sequence is None:
        output = regard.attend(*local, **options)
        (output * given.grad).sum().backward()
    else:
        output = parallel.attend(*local, sequence, **options)
        (output * sequence.shard(given.grad, 2)).sum().backward()
    shares = [torch.zeros_like(one) if one.grad is None else one.grad for one in tensors]
    return _arrays([output, *(one.grad for one in local)]), _arrays(shares)


@pytest.mark.parametrize(
    "name, exchange", [*((one, "ring") for one in PIECES), *((one, "heads") for one in (*PIECES, *ROWS))]
)
def test_biases_scores_sinks_and_normalisers_give_the_numbers_of_one_process(two, name, exchange):
    answers = two.run(shared_pieces, name, exchange, "zigzag")
    options, tensors = pieces(name)
    right, right_tensors = _run_pieces(tensors, None, mask=masks.window(9, 2), **options)
    found = joined([rows for rows, _ in answers], "zigzag", "none", 2)
    for ours, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)
    for index, theirs in enumerate(right_tensors):
        total = sum(torch.from_numpy(shares[index]) for _, shares in answers)
        torch.testing.assert_close(total, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)


def dropped(exchange):
    """In a rank: with the identity as values, the output is the weights after dropout, and their transpose takes the
    gradient of the output to that of the values."""
    given = inputs()
    sequence = parallel.ShardedSequence(LENGTH)
    query, key = (sequence.shard(one, 2) for one in (given.query, given.key))
    value = sequence.shard(torch.eye(LENGTH, dtype=torch.float64).expand(2, 2, -1, -1), 2).requires_grad_()
    torch.manual_seed(5 + sequence.rank)
    output = parallel.attend(query, key, value, sequence, mask=masks.causal(), dropout=0.4, exchange=exchange)
    before = torch.random.get_rng_state()
    output.backward(torch.ones_like(output))
    assert torch.random.get_rng_state().equal(before)
    return _arrays([output, value.grad])


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_dropout_drops_the_same_weights_in_both_passes_and_scales_the_others(two, exchange):
    answers = two.run(dropped, exchange)
    weights, to_values = joined(answers, "zigzag", "none", 2)
    given = inputs()
    right = regard.weights(given.query, given.key, mask=masks.causal())
    kept = weights != 0
    torch.testing.assert_close(weights, torch.where(kept, right / 0.6, 0), rtol=1e-12, atol=1e-12)
    visible = right > 0
    share = kept[visible].double().mean()
    assert abs(share - 0.6) < 5 * math.sqrt(0.24 / int(visible.sum()))
    by_group = weights.unflatten(1, (2, 2)).sum((2, 3))  # over the heads that share a key head, and their queries
    torch.testing.assert_close(to_values, by_group[..., None].expand_as(to_values), rtol=1e-12, atol=1e-12)


def across(exchange):
    """In a rank: 13 queries of one sequence over 37 keys of another, aligned at the end."""
    given, short = inputs(), inputs(13)
    queries, keys = parallel.ShardedSequence(13), parallel.ShardedSequence(LENGTH, layout="contiguous")
    local = [queries.shard(short.query, 2), keys.shard(given.key, 2), keys.shard(given.value, 2)]
    local = [one.requires_grad_() for one in local]
    output = parallel.attend(*local, queries, key_sequence=keys, mask=masks.causal(), exchange=exchange)
    (queries.unshard(output, 2) * short.grad).sum().backward()  # every rank has the same loss
    return _arrays([queries.unshard(output, 2), *(one.grad for one in local)])


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_queries_of_another_sequence_attend_to_its_keys(four, exchange):
    answers = four.run(across, exchange)
    given, short = inputs(), inputs(13)
    local = [one.requires_grad_() for one in (short.query, given.key, given.value)]
    output = regard.attend(*local, mask=masks.causal())
    (output * short.grad).sum().backward()
    whole = schedule.choose("contiguous", LENGTH, 4)
    for answer in answers:
        torch.testing.assert_close(torch.from_numpy(answer[0]), output.detach(), rtol=1e-11, atol=1e-11)
    for index in (2, 3):  # the gradient of the gathered output is the sum of all four ranks' equal losses
        found = whole.join([torch.from_numpy(answer[index]) for answer in answers], 2)
        torch.testing.assert_close(found, 4 * local[index - 1].grad, rtol=1e-11, atol=1e-11)


def single_axis():
    """In a rank: inputs without an axis of heads, more ranks' chunks than positions."""
    given = inputs(5)
    sequence = parallel.ShardedSequence(5)
    local = [sequence.shard(one[:, 0], 1) for one in (given.query, given.key, given.value)]
    return _arrays([sequence.unshard(parallel.attend(*local, sequence, mask=masks.causal()), 1)])


def test_a_sequence_shorter_than_its_chunks_and_without_heads_is_shared_too(four):
    given = inputs(5)
    right = regard.attend(given.query[:, 0], given.key[:, 0], given.value[:, 0], mask=masks.causal())
    for (found,) in four.run(single_axis):
        torch.testing.assert_close(torch.from_numpy(found), right, rtol=1e-12, atol=1e-12)


def hostile(infinite):
    """In a rank: hidden keys and values are NaN, some rows see nothing, and one visible value may be infinite."""
    given = inputs()
    hidden = torch.arange(LENGTH) >= 30
    key, value = (one.masked_fill(hidden[:, None], torch.nan) for one in (given.key, given.value))
    if infinite:
        value[:, :, 20] = math.inf
    mask = masks.causal() & masks.padding(~hidden.expand(2, -1)) & masks.window(4)
    sequence = parallel.ShardedSequence(LENGTH)
    local = [sequence.shard(one, 2).requires_grad_() for one in (given.query, key, value)]
    output = parallel.attend(*local, sequence, mask=mask)
    (output * sequence.shard(given.grad, 2)).sum().backward()
    return _arrays([output, *(one.grad for one in local)])


def test_hidden_nan_reaches_no_row_and_no_gradient(four):
    output, *gradients = joined(four.run(hostile, False), "zigzag", "none", 4)
    assert output.isfinite().all()
    assert (output[:, :, 34:] == 0).all()  # they see hidden keys only
    for gradient in gradients:
        assert gradient.isfinite().all()
        assert (gradient[:, :, 34:] == 0).all()


def test_a_visible_infinity_reaches_the_rows_that_see_it_and_no_other(four):
    output, *_ = joined(four.run(hostile, True), "zigzag", "none", 4)
    rows = torch.arange(LENGTH)
    sees_infinity = (rows >= 20) & (rows <= 24)
    assert output[:, :, ~sees_infinity].isfinite().all()
    assert not output[:, :, sees_infinity].isfinite().any()


def refused():
    """In a rank: the messages of calls that cannot work. No rank sends anything."""
    given, found = inputs(), {}
    sequence = parallel.ShardedSequence(LENGTH)
    local = [sequence.shard(one, 2) for one in (given.query, given.key, given.value)]
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "context"))
    calls = {
        "whole": lambda: parallel.attend(given.query, given.key, given.value, sequence),
        "normalize": lambda: parallel.attend(*local, sequence, normalize="entmax15"),
        "exchange": lambda: parallel.attend(*local, sequence, exchange="rings"),
        "mask": lambda: parallel.attend(*local, sequence, mask=masks.padding(torch.ones(2, 18, dtype=torch.bool))),
        "sequence": lambda: parallel.attend(*local, None),
        "option": lambda: parallel.attend(*local, sequence, causal=True),
        "heads": lambda: parallel.attend(*(one[:, :1] for one in local), sequence, exchange="heads"),
        "layout": lambda: parallel.ShardedSequence(LENGTH, layout="zig-zag"),
        "mesh": lambda: parallel.ShardedSequence(LENGTH, mesh),
        "group": lambda: parallel.ShardedSequence(LENGTH, "world"),
        "shard": lambda: sequence.shard(given.query, 1),
    }
    for name, call in calls.items():
        try:
            call()
        except regard.RegardError as error:
            found[name] = str(error)
    return found


def test_what_cannot_work_is_refused_with_the_argument_and_a_way_out(two):
    messages = two.run(refused)[0]
    for name, words in {
        "whole": ("query:", "sequence.shard"),
        "normalize": ("normalize:", "exchange='heads'"),
        "exchange": ("exchange:", "'ring'"),
        "mask": ("mask:", "(2, 37)"),
        "sequence": ("sequence:", "ShardedSequence"),
        "option": ("causal",),
        "heads": ("exchange:", "1 heads and 2 ranks", "exchange='ring'"),
        "layout": ("layout:", "'zigzag'"),
        "mesh": ("group:", "mesh['context']"),
        "group": ("group:", "'world'"),
        "shard": ("whole:", "37 positions along axis 1"),
    }.items():
        assert all(word in messages[name] for word in words), (name, messages.get(name))
