"""What the signature of a repeated call holds: two calls that a plan may tell apart never share one."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from regard import biases, masks, scores
from regard.dispatch import repeated_calls
from tests.test_repeated_calls import drawn, rows


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Signatures of CPU tensors are made as those of a GPU's."""
    monkeypatch.setattr(repeated_calls, "_is_on_gpu", torch.Tensor.is_cpu.__get__)


def signed(given, **options):
    return repeated_calls.signature(*given, options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_torchs_switches_on_a_gpu_are_part_of_a_signature(as_on_a_gpu, dtype):
    given = rows(dtype=dtype)
    before = signed(given)
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel(backend):
            assert signed(given) != before
    torch.use_deterministic_algorithms(True)
    try:
        assert signed(given) != before
    finally:
        torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision("high")
    try:  # nothing of bfloat16 depends on it
        assert (signed(given) == before) == (dtype == torch.bfloat16)
    finally:
        torch.set_float32_matmul_precision("highest")
    with torch.inference_mode():
        assert signed(given) != before
    assert signed(given) == before is not None


def test_what_a_plan_depends_on_is_part_of_a_signature(as_on_a_gpu):
    given = rows(queries=17)
    other = {
        "gradient": [x.clone().requires_grad_() for x in given],
        "dtype": [x.double() for x in given],
        "keys": rows(queries=17, keys=24),
        "queries": rows(queries=18),
        "heads": rows(queries=17, heads=8),
        "groups": rows(queries=17, groups=4),
        "values": [*given[:2], given[2][..., :5]],
        "gradient of one": [*given[:2], given[2].clone().requires_grad_()],
    }
    found = {name: signed(one) for name, one in other.items()}
    assert None not in found.values() and found["gradient"] == found["gradient of one"]
    assert len({signed(given), *found.values()}) == len(other)
    trained = [[x.requires_grad_() for x in rows(keys=keys)] for keys in (23, 24)]
    assert signed(trained[0]) != signed(trained[1])  # of one query, too
    with torch.no_grad():
        assert signed(trained[0]) == signed(trained[1])
    for wrong in ([given[0], given[1][:, :, :5], given[2]], [given[0], given[1], given[2][0]]):
        assert signed(wrong) is None


def test_options_that_are_equal_but_mean_something_else_have_other_signatures(as_on_a_gpu):
    given = rows(queries=17)
    options = [
        {},
        {"scale": 1},
        {"scale": 1.0},
        {"scale": True},
        {"dropout": 0},
        {"dropout": 0.0},
        {"dropout": False},
        {"return_logsumexp": False},
        {"return_logsumexp": True},
        {"mask": masks.causal()},
        {"mask": masks.window(3)},
        {"mask": masks.window(4)},
        {"mask": masks.causal(), "bias": biases.alibi(4)},
        {"bias": biases.alibi(4)},
        {"score": scores.softcap(3.0)},
        {"score": scores.softcap(4.0)},
        {"score": "dot"},
        {"normalize": "sigmoid"},
    ]
    assert len({signed(given, **one) for one in options}) == len(options)
    for one in options:
        assert signed(given, **one) == signed(rows(queries=17), **one) is not None
    for tensors in ({"sink": drawn(4)}, {"bias": biases.relative(drawn(4, 9))}, {"mask": drawn(17, 23) > 0}):
        assert signed(given, **tensors) is None


def test_autocast_has_a_signature_only_where_it_changes_no_dtype(as_on_a_gpu):
    half, full = rows(dtype=torch.bfloat16), rows()
    before = signed(half), signed(full)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    try:
        assert signed(half) == before[0] and signed(full) is None
        torch.set_autocast_dtype("cuda", torch.float16)
        assert signed(half) is None
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", torch.float16)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # not that of these rows
        assert signed(full) == before[1]
    assert (signed(half), signed(full)) == before
