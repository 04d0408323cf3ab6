"""What a call that repeats costs: how many functions of ours it passes, and how much memory the tables may keep."""

import threading

import pytest
import torch

import regard
from regard import masks
from regard.dispatch import repeated_calls
from regard.implementations.tiled import banded, layout
from tests.recorded.walks import walked
from tests.test_repeated_calls import the_usual_way

N = 251
KEPT = torch.arange(N).expand(2, -1) < torch.tensor([[N], [190]])
OF_DISTANCES = {
    "window": lambda: masks.window(31),
    "causal window": lambda: masks.window(31, 0),
    "dilated": lambda: masks.dilated(3),
    "causal and dilated": lambda: masks.causal() & masks.dilated(3),
    "a union": lambda: masks.window(5, 9) | masks.dilated(97),
}
IN_STRIPS = {
    "global tokens": lambda: masks.window(31, 0) | masks.global_tokens((0, 7)),
    "blocks": lambda: masks.blocks(16),
    "prefix": lambda: masks.causal() | masks.prefix(9),
    "documents": lambda: masks.documents(torch.arange(N) // 50),
    "lengths of both": lambda: masks.lengths(torch.tensor([N, 99]), torch.tensor([N, 99])),
    "packed": lambda: masks.packed([0, 100, N]),
    "tensor": lambda: torch.arange(N * N).view(N, N) % 3 > 0,
}


@pytest.fixture(autouse=True)
def empty_tables():
    for clear in (repeated_calls.KNOWN.clear, layout.kept_layout.cache_clear, banded._kept_bands.cache_clear):
        clear()
    yield
    repeated_calls.KNOWN.clear()


def rows(batch=2, length=N):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(batch, heads, length, 32, generator=generator) for heads in (4, 2, 2)]


def again(call):
    """The walk of the second call."""
    call()
    return walked(call)


@pytest.mark.parametrize("name", OF_DISTANCES)
@torch.no_grad()
def test_a_mask_of_distances_costs_at_most_thirty_calls_for_any_batch(name):
    walks = [again(lambda given=rows(batch): regard.attend(*given, mask=OF_DISTANCES[name]())) for batch in (1, 7)]
    assert walks[0]["calls"] == walks[1]["calls"] <= 30


@pytest.mark.parametrize("name", IN_STRIPS)
@torch.no_grad()
def test_a_mask_that_goes_by_strips_costs_at_most_thirty_functions(name):
    given = rows()
    assert again(lambda: regard.attend(*given, mask=IN_STRIPS[name]()))["functions"] <= 30


@torch.no_grad()
def test_a_mask_with_tensors_that_is_joined_to_another_costs_at_most_forty_functions():
    given = rows()
    call = lambda: regard.attend(*given, mask=masks.causal() & masks.padding(KEPT))  # noqa: E731
    assert again(call)["functions"] <= 40


@pytest.mark.parametrize("make", [OF_DISTANCES["causal window"], IN_STRIPS["documents"]], ids=["window", "documents"])
def test_forward_and_backward_cost_at_most_a_hundred_calls(make):
    given = [tensor.requires_grad_() for tensor in rows()]
    assert again(lambda: regard.attend(*given, mask=make()).sum().backward())["calls"] <= 100


def test_a_layer_is_built_by_at_most_fifty_calls_once_its_class_is_known():
    assert again(lambda: regard.nn.build("local", dim=64, num_heads=4, window=17))["calls"] <= 50


def test_what_build_refuses_and_says_is_the_same_each_time():
    for options in ({"windw": 3}, {"window": "wide"}, {"num_heads": 5}):
        messages = set()
        for _ in range(3):
            with pytest.raises(regard.RegardError) as caught:
                regard.nn.build("local", dim=64, **options)
            messages.add(str(caught.value))
            regard.nn.build("local", dim=64, window=9)
        assert len(messages) == 1
    with_window = regard.nn.build("local(window=9)", dim=64)
    assert with_window.window == 9 and regard.nn.build("local", dim=64).window != 9


def kept_bytes(kept):
    """The bytes of all tensors that an object leads to."""
    storages, queue, seen = {}, [kept], set()
    while queue:
        thing = queue.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, (list, tuple)):
            queue += thing
        elif type(thing).__module__.startswith("regard"):
            queue += [getattr(thing, name) for name in getattr(thing, "__slots__", ()) or vars(thing)]
    return sum(storages.values())


@pytest.mark.parametrize("mask", [masks.dilated(2), masks.causal() | masks.global_tokens(range(3))], ids=repr)
@torch.no_grad()
def test_a_layout_with_large_tiles_keeps_little_and_gives_the_same_bits(mask):
    given = rows(1, 1409)
    with the_usual_way():
        expected = regard.attend(*given, mask=mask)
    for _ in range(3):
        assert torch.equal(regard.attend(*given, mask=mask), expected)
    bands = banded._kept_bands(mask.spec, (1, 4, 1409, 1409), torch.float32, False)
    key = layout.LayoutKey(mask.spec, 1 << 19, False, (1, 4, 1409, 1409), 2, torch.float32, True)
    for kept in (bands, layout.kept_layout(key)):
        assert kept is None or kept_bytes(kept) <= 2 << 20


@torch.no_grad()
def test_the_number_of_kept_layouts_is_bounded():
    for length in range(3, 90):
        regard.attend(*rows(1, length), mask=masks.blocks(4))
        regard.attend(*rows(1, length), mask=masks.window(4))
    assert layout.kept_layout.cache_info().currsize <= 32 and banded._kept_bands.cache_info().currsize <= 32


@torch.no_grad()
def test_threads_that_share_a_layout_give_the_same_bits():
    given = rows(2, 701)
    options = [{"mask": make()} for make in (OF_DISTANCES["causal window"], IN_STRIPS["global tokens"])]
    with the_usual_way():
        expected = [regard.attend(*given, **chosen) for chosen in options]
    different = []

    def work():
        with torch.no_grad():
            for _ in range(5):
                for chosen, bits in zip(options, expected, strict=True):
                    if not torch.equal(regard.attend(*given, **chosen), bits):
                        different.append(chosen)

    layout.kept_layout.cache_clear()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not different


def test_what_inference_mode_kept_is_not_used_outside_of_it():
    given = rows()
    with torch.inference_mode():
        for _ in range(2):
            regard.attend(*given, mask=masks.blocks(16))
            regard.attend(*given, mask=masks.window(16))
    leaves = [tensor.requires_grad_() for tensor in given]
    for mask in (masks.blocks(16), masks.window(16)):
        output = regard.attend(*leaves, mask=mask)
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        true = regard.attend(*leaves, mask=mask, impl="reference")
        expected = torch.autograd.grad(true.square().sum(), leaves, create_graph=True)
        torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4)


def test_a_change_in_place_between_the_passes_is_noticed():
    given = [tensor.requires_grad_() for tensor in rows()]
    weight = torch.ones(2, N, dtype=torch.bool)
    query = given[0] * 1
    output = regard.attend(query, *given[1:], mask=masks.documents(torch.arange(N) // 50) & masks.padding(weight))
    query.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_hooks_on_saved_tensors_see_what_is_saved():
    given = [tensor.requires_grad_() for tensor in rows()]
    mask = masks.documents(torch.arange(N) // 50)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: packed.append(tensor) or tensor, lambda tensor: tensor
    ):
        regard.attend(*given, mask=mask).sum().backward()
    saved = [tensor.data_ptr() for tensor in packed]
    assert {tensor.data_ptr() for tensor in (*given, *mask.tensors)} <= set(saved)
