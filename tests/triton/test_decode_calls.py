"""Repeated calls of the kernels for decoding: launches by kept arguments give the bits of those through a request."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import regard
from regard import masks
from regard.dispatch import plan, repeated_calls
from regard.formula import call, request
from regard.implementations.triton.dot import decode, decode_calls, direct
from regard.implementations.triton.launch import launching, raw_launches

from .conftest import DEVICE, GPU
from .repeating import empty_table  # noqa: F401 - a fixture
from .test_launch import _Kernel, raw  # noqa: F401 - a fixture

B, H, G, D = 2, 6, 2, 16


def drawn(queries, keys, width=D, dtype=torch.float32):
    return [torch.randn(B, h, n, width, device=DEVICE).to(dtype) for h, n in ((H, queries), (G, keys), (G, keys))]


def lengths(*numbers, dtype=torch.int64):
    return masks.lengths(torch.tensor(numbers, device=DEVICE, dtype=dtype))


def both_ways(rows, **options):
    """What the kept function returns, or None, and what the usual way returns."""
    regard.attend(*rows, impl="triton", **options)
    (run,) = repeated_calls.KNOWN.values()
    short = run(*rows, options)
    repeated_calls.KNOWN.clear()
    return short, regard.attend(*rows, impl="triton", **options)


CASES = {
    "all keys at once": (1, 53, lambda: {}),
    "splits": (1, 307, lambda: {}),
    "causal": (1, 307, lambda: {"mask": masks.causal()}),
    "three queries, causal": (3, 307, lambda: {"mask": masks.causal()}),
    "window": (2, 307, lambda: {"mask": masks.window(41, 0)}),
    "a window wider than all": (2, 307, lambda: {"mask": masks.window(2**40)}),
    "lengths": (1, 307, lambda: {"mask": lengths(300, 7)}),
    "lengths of 32 bits": (2, 307, lambda: {"mask": lengths(0, 307, dtype=torch.int32)}),
    "scale": (1, 307, lambda: {"scale": 0.3}),
    "dot": (1, 307, lambda: {"score": "dot"}),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_kept_launch_gives_the_bits_of_the_usual_way_and_the_formula(name):
    queries, keys, options = CASES[name]
    rows, options = drawn(queries, keys), options()
    short, usual = both_ways(rows, **options)
    assert short is not None and short.is_contiguous() and torch.equal(short, usual)
    true = regard.attend(*[x.double() for x in rows], impl="reference", **options)
    torch.testing.assert_close(short.double(), true, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_hidden_keys_are_not_read_by_a_kept_launch():
    rows, mask = drawn(1, 307), lengths(200, 100)
    expected = both_ways(rows, mask=mask)[0]
    for poison in (float("nan"), float("inf")):
        rows[1][0, :, 200:], rows[2][0, :, 200:] = poison, poison
        rows[1][1, :, 100:], rows[2][1, :, 100:] = poison, poison
        assert torch.equal(both_ways(rows, mask=mask)[0], expected)


@torch.no_grad()
def test_a_growing_cache_changes_numbers_and_compiles_nothing(monkeypatch):
    builds = []
    monkeypatch.setattr(
        decode_calls, "launches", lambda *given, **more: builds.append(1) or decode.launches(*given, **more)
    )
    for keys in range(301, 340, 6):  # as torch.cat makes it, and as a part of a longer one
        rows = drawn(1, keys)
        longer = [rows[0], *[torch.randn(B, G, 400, D, device=DEVICE)[:, :, :keys] for _ in range(2)]]
        for given in (rows, longer):
            found = regard.attend(*given, impl="triton")
            true = regard.attend(*given, impl="reference")
            torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)
    kept = [run for run in repeated_calls.KNOWN.values() if run is not repeated_calls._never]
    assert len(kept) == 1
    numbers_of_splits = {decode.count_splits(*drawn(1, keys)) for keys in range(301, 340, 6)}
    assert len(builds) == len(numbers_of_splits)


@torch.no_grad()
def test_code_is_shared_only_where_the_same_strides_take_64_bits(monkeypatch):
    """Triton compiles for the bits of each number. An axis of one may have any stride, as part of a large cache."""
    query, key, value = (one[:1] for one in drawn(1, 53))
    far = [one.as_strided(one.shape, (2**35, *one.stride()[1:])) for one in (key, value)]
    layouts = [(query, key, value), (query, far[0], value), (query, key, far[1]), (query, *far)]
    made, true = [], regard.attend(query, key, value, impl="reference")
    monkeypatch.setattr(
        decode_calls, "launches", lambda *given, **more: made.append(decode.launches(*given, **more)) or made[-1]
    )
    for _ in range(2):
        for given in layouts:
            torch.testing.assert_close(regard.attend(*given, impl="triton"), true, rtol=1e-5, atol=1e-5)
    assert len({one[0].key for one in made}) == len(made) == 4


@torch.no_grad()
def test_rows_that_kernels_cannot_read_as_they_are_take_the_usual_way():
    query, key, value = drawn(1, 53)
    regard.attend(query, key, value, impl="triton")
    (run,) = repeated_calls.KNOWN.values()
    assert run(query, key, value, {}) is not None
    assert run(query, key.mT.contiguous().mT, value, {}) is None
    base = torch.randn(B * G * 53 * D + 1, device=DEVICE)
    assert run(query, base[1:].view(key.shape), value, {}) is None
    assert run(query, base[:-1].view(key.shape), value, {}) is not None
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (query, key, value)]
    assert torch.equal(run(*turned, {}), run(query, key, value, {}))


@pytest.mark.parametrize(
    "options",
    [
        {"mask": masks.causal(offset=3)},
        {"mask": masks.causal(align="top-left")},
        {"mask": masks.blocks(8)},
        {"mask": masks.lengths(torch.tensor([40]))},
        {"mask": masks.lengths(torch.tensor([40, 50])) & masks.causal()},
    ],
    ids=str,
)
@torch.no_grad()
def test_what_numbers_do_not_express_takes_the_usual_way(options):
    options = {name: x.to(DEVICE) if hasattr(x, "to") else x for name, x in options.items()}
    rows = drawn(1, 53)
    for keys in (53, 1, 7):
        cut = [rows[0], *[x[:, :, :keys].contiguous() for x in rows[1:]]]
        for _ in range(2):
            try:
                found = regard.attend(*cut, impl="triton", **options)
            except regard.Unsupported:
                continue
            true = regard.attend(*cut, impl="reference", **options)
            torch.testing.assert_close(found, true, rtol=1e-5, atol=1e-5)
    assert all(run is repeated_calls._never for run in repeated_calls.KNOWN.values())


def test_a_gradient_or_many_queries_do_not_go_to_the_kernels_for_decoding():
    rows = [x.requires_grad_() for x in drawn(1, 53)]
    assert regard.attend(*rows, impl="triton").requires_grad
    regard.attend(*drawn(17, 53), impl="triton")
    kept = [run.__self__ for run in repeated_calls.KNOWN.values()]
    assert [type(one) for one in kept] == [direct.DirectCall] * 2


@torch.no_grad()
def test_nothing_of_a_call_is_kept():
    rows, mask = drawn(1, 307), lengths(300, 7)
    for _ in range(2):
        found = regard.attend(*rows, mask=mask, impl="triton")
    kept = [weakref.ref(thing) for thing in (*rows, mask, mask.key_lengths, found)]
    del rows, mask, found
    gc.collect()
    assert [ref() for ref in kept] == [None] * 6


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_a_known_c_function_gets_the_arguments_in_their_places(raw, nested, monkeypatch):  # noqa: F811
    kernel, rows = _Kernel(nested), [torch.full((4, 4), float(n)) for n in range(4)]
    monkeypatch.setattr(kernel, "arg_names", ("A", "size", "B", "C", "D"))
    values = (rows[0], 7, rows[1], 9, 0.5)
    found = raw_launches.RawLaunch.of(kernel, list(values), range(5))
    key = (id(kernel), rows[0].get_device(), (("num_warps", 4),), "code")
    monkeypatch.setitem(launching._KNOWN, key, found)
    first = launching.launch_again(kernel, (5, 2, 1), values, ["B", "A"], key="code", num_warps=4)
    grown = first.with_numbers({"size": 8, "C": 10})
    for launch in (first, grown, first):
        launch(rows[2], rows[3])
    got = [(*one[:9], *one[9]) if nested else one for one in kernel.later]
    expected = [
        (5, 2, 1, 5, 77, (4, 1, 0), None, None, None, rows[3].data_ptr(), size, rows[2].data_ptr(), count, 0.5)
        for size, count in ((7, 9), (8, 10), (7, 9))
    ]
    assert got == expected and not kernel.first
    other = launching.launch_again(kernel, (5, 2, 1), values, ["B", "A"], key="other code", num_warps=4)
    other(rows[2], rows[3])
    assert len(kernel.first) == 1 and len(kernel.later) == 3


def asked(queries=1, keys=4096, dtype=torch.bfloat16, **options):
    rows = [torch.empty(1, h, n, 128, dtype=dtype, device="meta") for h, n in ((32, queries), (8, keys), (8, keys))]
    return request.build(call.Call(*rows, **options))


def test_small_caches_are_decoded_by_our_kernels(monkeypatch):
    refused = []
    monkeypatch.setattr(plan, "is_fake_or_meta", lambda tensor: False)
    monkeypatch.setattr(raw_launches, "refusal", lambda device: refused[0] if refused else None)
    faster = plan._decodes_faster
    for given in ({}, {"queries": 16}, {"mask": masks.causal()}, {"dtype": torch.float16}, {"keys": 2**14}):
        assert faster(asked(**given)), given
    for given in (
        {"queries": 17},
        {"keys": 2**14 + 1},
        {"dtype": torch.float32},
        {"mask": masks.causal(offset=2)},
        {"mask": masks.causal(align="top-left")},
        {"dropout": 0.1},
    ):
        assert not faster(asked(**given)), given
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        assert not faster(asked())
    assert torch.func.vmap(lambda x: torch.tensor(faster(asked())))(torch.zeros(2)).tolist() == [False] * 2
    trained = asked()
    trained.query.requires_grad_()
    assert not faster(trained)
    refused.append("Triton is another")
    assert not faster(asked())
    monkeypatch.undo()
    assert not faster(asked())  # tensors without contents


def test_a_traced_size_is_not_compared_with_that_of_a_small_cache():
    sizes = ShapeEnv()
    mode = FakeTensorMode(shape_env=sizes)
    rows = [mode.from_tensor(torch.empty(3, h, n, 128, dtype=torch.bfloat16)) for h, n in ((8, 5), (8, 37), (8, 37))]
    traced = request.build(call.Call(*rows))
    before = len(sizes.guards)
    assert not plan._decodes_faster(traced)
    assert len(sizes.guards) == before


@pytest.mark.skipif(not GPU, reason="needs CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_auto_takes_kept_launches_on_a_gpu(dtype):
    rows = drawn(1, 4099, width=128, dtype=dtype)
    assert regard.explain(*rows).impl == "triton"
    true = regard.attend(*[x.double() for x in rows], impl="reference")
    found = [regard.attend(*rows) for _ in range(4)]
    kept = [getattr(run, "__self__", None) for run in repeated_calls.KNOWN.values()]
    assert sum(isinstance(one, decode_calls.DecodeCalls) for one in kept) == 1
    for one in found:
        assert torch.equal(one, found[0])
        torch.testing.assert_close(one.double(), true, rtol=2e-2, atol=2e-3)
    with torch.cuda.stream(torch.cuda.Stream()):
        assert torch.equal(regard.attend(*rows), found[0])
    torch.cuda.synchronize()
    graph, static = torch.cuda.CUDAGraph(), [x.clone() for x in rows]
    with torch.cuda.graph(graph):
        output = regard.attend(*static)
    static[0].copy_(rows[0].flip(1))
    graph.replay()
    assert torch.equal(output, regard.attend(*static))
