"""The cases of the GPU at small sizes on a CPU: they compare what they say they compare, and refuse what is wrong."""

import math
import os
import types
from itertools import pairwise

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import regard
from bench.cases.gpu import (
    additive,
    check,
    compare,
    decoding,
    events,
    host,
    lengths,
    looking,
    machine,
    normalizers,
    peers,
    training,
    warm,
)
from bench.cases.gpu.dot import CAUSAL, FULL
from bench.cases.gpu.events import Times, alone, calls_in_a_group, compared, side_by_side
from bench.cases.gpu.structured import SPARSE, STRUCTURED, document_ends
from bench.cases.gpu.work import Size, Work, gradient, inputs
from regard import masks
from regard_workbench.bench.case import CASES, Setting, Wrong

pytestmark = pytest.mark.slow
TINY = Size(2, 3, 131, 16)
QUICK = Setting(device="cpu", quick=True)
WORKS = [FULL, CAUSAL, *SPARSE, *STRUCTURED]


def eager_flex(work, size, device):
    score = work.score(size, device) if work.score else None
    blocks = create_block_mask(work.mask(size, device), None, None, size.length, size.length, device=device)
    return lambda q, k, v: flex_attention(q, k, v, score_mod=score, block_mask=blocks)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
@pytest.mark.parametrize("train", [False, True])
def test_every_work_agrees_with_the_float64_formula_of_one_head(work, train):
    tensors = inputs(TINY, "cpu", torch.float32)
    upstream = gradient(TINY, "cpu", torch.float32) if train else None
    errors = check.attention(tensors, work.options(TINY, "cpu"), work.for_head(TINY, "cpu"), upstream)
    assert len(errors) == (4 if train else 1) and max(errors.values()) < 1e-5


@pytest.mark.parametrize("work", [*SPARSE, *STRUCTURED], ids=lambda work: work.name)
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_told_the_same_work(work):
    tensors = inputs(TINY, "cpu", torch.float32)
    theirs = eager_flex(work, TINY, "cpu")(*tensors)
    torch.testing.assert_close(theirs, regard.attend(*tensors, **work.options(TINY, "cpu")), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("work", [SPARSE[0], STRUCTURED[2]], ids=lambda work: work.name)
def test_varlen_attn_is_told_the_same_work(work):
    """By hand, since it runs on a GPU only: each sequence alone, seeing as far back as its window says."""
    tensors = inputs(TINY, "cpu", torch.float32)
    options, ends = work.varlen(TINY)
    back, ahead = options["window_size"]
    query, key, value = peers.flattened(tensors)
    found = torch.empty_like(query)
    for begin, end in pairwise(ends):
        mask = masks.causal() if back < 0 else masks.causal() & masks.window(back, ahead)
        part = [t[begin:end].transpose(0, 1)[None] for t in (query, key, value)]
        found[begin:end] = regard.attend(*part, mask=mask, impl="reference")[0].transpose(0, 1)
    wanted = regard.attend(*tensors, **work.options(TINY, "cpu"))
    torch.testing.assert_close(peers.unflattened(found, TINY), wanted, atol=2e-5, rtol=1e-4)
    assert ahead == 0 and ends[0] == 0 and ends[-1] == TINY.batch * TINY.length


def test_documents_cover_everything_and_differ_in_length():
    for size in (TINY, Size(1, 1, 4096, 8), Size(1, 1, 9, 8)):
        ends = document_ends(size)
        assert ends == sorted(set(ends)) and (ends[0], ends[-1]) == (0, size.length)


@pytest.fixture
def known_times(monkeypatch):
    """Each contestant takes a time of its own, whatever else the machine does: 3 ms the first, then 2, 4, 5, 6."""
    seconds, left = {}, iter([3e-3, 2e-3, 4e-3, 5e-3, 6e-3])

    def group(call, count, device):
        call()
        if call not in seconds:
            seconds[call] = next(left)
        return seconds[call]

    monkeypatch.setattr(events, "group", group)


@pytest.mark.parametrize("train", [False, True])
def test_a_comparison_times_every_peer_that_runs_and_keeps_the_errors_of_the_others(train, known_times):
    found = compare.measured(QUICK, CAUSAL, TINY, train, faster=False, dtype=torch.float32)
    assert found.best in ("SDPA flash", "SDPA efficient") and found.samples == 3
    assert found.value == pytest.approx(3 / 2) and (found.ours, found.peer) == (3e-3, 2e-3) and found.impl == "sdpa"
    assert isinstance(found.peers["SDPA cuDNN"], str) and isinstance(found.peers["SDPA flash"], float)
    assert set(found.details["errors"]) >= {"output"}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_a_peer_that_computes_something_else_is_left_out(monkeypatch, known_times):
    window = SPARSE[0]
    cheat = Work("x", "x", mask=STRUCTURED[1].mask)
    monkeypatch.setattr(peers, "flex", lambda work, size, device, mode=None: eager_flex(cheat, size, device))
    with pytest.raises(RuntimeError, match=r"no peer ran.*FlexAttention: Wrong: not timed"):
        compare.measured(QUICK, window, TINY, False, faster=True, dtype=torch.float32)
    monkeypatch.setattr(peers, "flex", eager_flex)
    found = compare.measured(QUICK, window, TINY, False, faster=True, dtype=torch.float32)
    assert found.best == "FlexAttention" and found.value == pytest.approx(found.peer / found.ours)


@pytest.mark.parametrize("damage", [1.05, math.nan])
def test_what_is_wrong_is_not_timed(monkeypatch, damage):
    real = check.attend

    def wrong(*tensors, impl="auto", **options):
        found = real(*tensors, impl=impl, **options)
        return found if impl == "reference" else torch.cat([found[..., :-1, :], damage * found[..., -1:, :]], -2)

    monkeypatch.setattr(check, "attend", wrong)
    with pytest.raises(Wrong, match="not timed, because it is wrong: relative error of output"):
        compare.measured(QUICK, FULL, TINY, False, faster=False, dtype=torch.float32)


def test_grouped_heads_are_checked_through_the_last_of_them():
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    errors = check.attention([query, key, value], {}, lambda head: {}, torch.randn(2, 6, 5, 8))
    assert set(errors) == {"output", "query's gradient"}


def test_ratios_are_taken_round_by_round():
    times = Times({"ours": [1.0, 2.0, 4.0], "a": [2.0, 4.0, 4.0], "b": [9.0, 9.0, 9.0]}, {"c": "TypeError: no"})
    found = compared(times, ["a", "b", "c"], faster=True, impl="tiled")
    assert (found.value, found.best, found.ours, found.peer) == (2.0, "a", 2.0, 4.0)
    assert found.peers == {"a": 4.0, "b": 9.0, "c": "TypeError: no"}
    assert compared(times, ["b"], faster=False, impl="").value == pytest.approx(2 / 9)
    assert alone(times, impl="", scale=1e3).value == 2000.0
    with pytest.raises(RuntimeError, match="no peer ran"):
        compared(times, ["c"], faster=True, impl="")


def test_a_contestant_that_fails_is_left_out_unless_it_is_ours():
    def fails():
        raise ValueError("never\nmore")

    times = side_by_side({"ours": lambda: None, "other": fails}, QUICK)
    assert times.refused == {"other": "ValueError: never"} and len(times.seconds["ours"]) == 3
    with pytest.raises(ValueError, match="never"):
        side_by_side({"ours": fails}, QUICK)


def test_unseen_lengths_are_a_hundred_and_all_different():
    chosen = lengths.unseen()
    assert len(set(chosen)) == 100 and not set(chosen) & set(lengths.WARM)


@pytest.mark.parametrize("train", [False, True])
def test_the_slowest_first_call_counts(train):
    size = Size(1, 2, 0, 8)
    found = lengths.measured(QUICK, STRUCTURED[0], train, size, [19, 23, 31], (17,), torch.float32)
    assert found.samples == 3 and found.value >= found.high >= found.details["median_ms"] > 0
    assert found.impl == "tiled"


def test_the_additive_score_is_checked_with_all_its_gradients_and_timed(monkeypatch):
    monkeypatch.setattr(additive, "ROWS", 7)
    monkeypatch.setattr(torch, "compile", lambda call, **options: call)
    size = Size(2, 1, 29, 8)
    found = additive.measured(QUICK, size, train=True)
    assert found.value == pytest.approx(1e3 * found.ours) and found.best in ("eager", "torch.compile")
    assert len(found.details["errors"]) == 5
    assert additive.measured(QUICK, size, train=True, against_compiled=True).best == "torch.compile"
    assert additive.memory(QUICK, size).details["errors"]["weight's gradient"] < 1e-5


def test_the_machine_is_compared_with_plain_torch():
    found = machine.measured(QUICK, batch=2, steps=3)
    assert found.best == "plain torch" and found.value == pytest.approx(1e3 * found.ours)


def test_summaries_are_checked_against_the_weights_and_timed():
    found = looking.time(QUICK, TINY, torch.float32)
    assert found.best == looking.FORWARD and len(found.details["errors"]) == 5
    assert max(found.details["errors"].values()) < 1e-5


def test_one_sequence_of_decoding_is_timed_beside_sdpa():
    found = decoding.beside_sdpa(QUICK, cache=67, dtype=torch.float32)
    assert found.value > 0 and found.best in (decoding.CHOSEN, *peers.BACKENDS)
    assert decoding.CHOSEN in found.peers and found.details["errors"]["output"] < 1e-5


def test_the_host_is_judged_by_its_slowest_mask():
    found = host.measured(QUICK, size=TINY, dtype=torch.float32, calls=2)
    each = found.details["microseconds"]
    assert set(each) == {work.name for work in (*SPARSE, *STRUCTURED)} | {"padding"}
    assert found.value == max(each.values()) == each[found.details["slowest"]] and found.peer > 0
    assert found.peers[host.NOTHING] > 0 and all(len(one) == 3 for one in found.details["readings"].values())


def test_jobs_to_compile_are_taken_from_the_pipe_once_each_in_order(monkeypatch):
    taken = []

    def fails(setting):
        raise RuntimeError("where it counts, it fails again")

    def job(name):
        return lambda setting: taken.append(name)

    cases = {
        "a": types.SimpleNamespace(ahead=(job("a's first"), job("a's second"))),
        "b": types.SimpleNamespace(ahead=(fails,)),
    }
    monkeypatch.setattr(warm, "CASES", cases)
    work = warm.written(["a 0", "b 0", "a 1", "a 0"])
    assert os.read(work, warm.RECORD).split() == [b"a", b"0"]  # another process took this one
    warm.child(work)
    os.close(work)
    assert taken == ["a's second", "a's first"]


def test_families_take_turns_with_their_jobs():
    def one(name, jobs):
        return types.SimpleNamespace(name=name, ahead=(print,) * jobs)

    cases = [one("x-1", 2), one("x-2", 1), one("y-1", 1), one("z-1", 0), one("x-3", 1), one("y-2", 2)]
    assert warm.in_turns(cases) == ["x-1 0", "x-1 1", "y-1 0", "x-2 0", "y-2 0", "y-2 1", "x-3 0"]
    every = warm.in_turns([CASES[name] for name in CASES])
    assert len(set(every)) == len(every) and all(len(job) <= warm.RECORD for job in every)
    assert len(every) * warm.RECORD <= 2**16  # what a pipe holds


def test_long_calls_come_in_smaller_groups():
    assert calls_in_a_group(1e-4, 1e-4) == 20 and calls_in_a_group(4e-3, 4e-3) == 20
    assert calls_in_a_group(0.01, 0.01) == 8 and calls_in_a_group(0.05, 0.05) == 4
    assert calls_in_a_group(0.2, 0.2) == 1
    assert calls_in_a_group(1e-3, 1e-4) == 4 and calls_in_a_group(0.05, 0.01) == 1  # far behind


@pytest.mark.parametrize("name", normalizers.BARS)
@pytest.mark.parametrize("train", [False, True])
def test_other_normalisers_are_timed_beside_softmax(name, train):
    found = normalizers.measured(QUICK, name, TINY, train, torch.float32)
    assert found.value > 0 and found.best == normalizers.SOFTMAX
    assert len(found.details["errors"]) == (4 if train else 1)


@pytest.mark.parametrize("train", [False, True])
def test_sparsemax_is_timed_beside_tiled(train, known_times):
    found = normalizers.measured(QUICK, "sparsemax", TINY, train, torch.float32, against=normalizers.TILED)
    assert found.best == normalizers.TILED and found.value == pytest.approx(found.peer / found.ours)
    assert normalizers.SOFTMAX in found.peers


def test_the_memory_of_every_normaliser_is_measured_at_two_lengths(monkeypatch):
    lengths = []

    def counted(call, device):
        call()
        lengths.append(call.args[1][0].shape[2])
        return lengths[-1] ** (2 if len(lengths) in (3, 4) else 1)

    monkeypatch.setattr(normalizers, "extra_bytes", counted)
    found = normalizers.growth(QUICK, TINY, torch.float32)
    assert lengths == [65, 131] * 4 and found.value == pytest.approx((131 / 65) ** 2)
    assert found.details["times"]["hard"] == pytest.approx(131 / 65)


def test_decoding_is_a_share_of_the_copy_bandwidth(known_times):
    found = decoding.measured(QUICK, batch=1, cache=64, copied=2**16, dtype=torch.float32)
    rate = found.details["ours_tb_per_second"] / found.details["copy_tb_per_second"]
    assert found.value == pytest.approx(100 * rate) and found.value > 0


def test_training_steps_are_counted_through_the_loop():
    found = training.measured(QUICK, compile=False, precision="32-true", batch=4, length=16, steps=80)
    assert found.value == pytest.approx(1 / found.ours) and found.samples == training.WINDOWS
    assert found.details["loss_last"] < found.details["loss_first"]
