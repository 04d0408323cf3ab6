"""The kernels of the row-wise stages beside the plain modules: outputs, gradients, dropout, and when they are used."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from regard import masks
from regard.formula import dropout
from regard.nn import fast_path
from regard.values.grid import Grid
from regard_fast import fused_rows
from regard_fast.fused_rows import kernels as row_kernels
from regard_fast.fused_rows import layers, op
from regard_fast.fused_rows.op import RowOptions
from regard_workbench import models
from regard_workbench.models.parts.stack import Stack
from regard_workbench.tasks.answers import NextToken, OneOf
from regard_workbench.tasks.parts.batch import Batch
from regard_workbench.tasks.parts.problem import Problem
from regard_workbench.tasks.parts.streams import Tokens, Vectors
from tests.triton.conftest import DEVICE, HALVED

# float64 shows a wrong formula where float32 would hide it in its rounding; a GPU has no such products.
DTYPE, WIDE = (torch.bfloat16, torch.float32) if HALVED else (torch.float64, torch.float64)
TOLERANCE = 3e-2 if HALVED else 1e-10
B, H, N, D, HIDDEN = 3, 2, 7, 32, 96
KINDS = [(True, True, 3), (False, False, 3), (True, False, 2), (True, True, 0), (True, True, 1)]


def modules(out, feed, maps):
    """The layers of the stages, in float64."""
    torch.manual_seed(5)
    made = nn.ModuleDict()
    if out:
        made["out"] = nn.Linear(D, D)
    if feed:
        made["norm"], made["rise"], made["fall"] = nn.LayerNorm(D), nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D)
    if maps:
        made["last"] = nn.LayerNorm(D)
        made["maps"] = nn.ModuleList(nn.Linear(D, D) for _ in range(maps))
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made.double().to(DEVICE)


def listed(made):
    """The weights in the order of the operator."""
    found = []
    for name in ("out", "norm", "rise", "fall", "last"):
        if name in made:
            found += [made[name].weight, made[name].bias]
    if "maps" in made:
        found += [one.weight for one in made["maps"]] + [one.bias for one in made["maps"]]
    return found


def by_modules(made, x, mixed, activation="gelu", drops=(lambda rows: rows,) * 3):
    """The stages by calling the modules."""
    if "out" in made:
        x = x + drops[0](made["out"](mixed.transpose(1, 2).reshape(x.shape)))
    if "rise" in made:
        x = x + drops[2](made["fall"](drops[1](getattr(F, activation)(made["rise"](made["norm"](x))))))
    if "maps" not in made:
        return [x]
    normed = made["last"](x)
    ys = [one(normed).unflatten(2, (H, D // H)).transpose(1, 2) for one in made["maps"]]
    return ([x] if "out" in made or "rise" in made else []) + ys


def inputs():
    torch.manual_seed(7)
    x = torch.randn(B, N, D, dtype=torch.float64, device=DEVICE)
    mixed = torch.randn(B, H, N, D // H, dtype=torch.float64, device=DEVICE)
    return x, mixed


def compare(kind, activation="gelu", rates=(0.0, 0.0, 0.0), seed=None, drops=(lambda rows: rows,) * 3, salt=0):
    """Outputs and the gradients of inputs and all weights, against the modules in float64."""
    made = modules(*kind)
    out, feed, maps = kind
    x, mixed = (one.requires_grad_() for one in inputs())
    wanted = by_modules(made, x, mixed, activation, drops)
    pulls = [torch.randn_like(one) for one in wanted]
    trained = listed(made)
    sources = [x, *([mixed] if out else []), *trained]
    truth = torch.autograd.grad(wanted, sources, pulls)

    ours = [one.detach().to(WIDE).requires_grad_() for one in (x, *trained)]
    own_mixed = mixed.detach().to(DTYPE).requires_grad_()
    options = RowOptions(out, feed, maps, activation, rates, (1e-5, 1e-5), salt, H, DTYPE)
    last, ys = op.run(ours[0], own_mixed if out else None, seed, ours[1:], options)
    found = [*([last] if out or feed else []), *ys]
    ends = [ours[0], *([own_mixed] if out else []), *ours[1:]]
    grads = torch.autograd.grad(found, ends, [pull.to(one.dtype) for pull, one in zip(pulls, found, strict=True)])
    for mine, theirs in zip([*found, *grads], [*wanted, *truth], strict=True):
        assert mine.shape == theirs.shape
        off = (mine.double() - theirs).norm() / theirs.norm().clamp(min=1e-9)
        assert off < TOLERANCE, (off, mine.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_stages_equal_the_modules_in_outputs_and_every_gradient(kind):
    compare(kind)


def test_weights_in_several_tiles_give_the_same(monkeypatch):
    monkeypatch.setattr(op.TUNING, "tile", 16)
    compare((True, True, 2))


def test_a_tile_divides_every_width():
    tuning = op.Tuning(tile=128)
    assert [tuning.tile_of(128, hidden) for hidden in (0, 512, 192, 320)] == [128, 128, 64, 64]
    assert tuning.tile_of(256, 1024) == 32 and tuning.tile_of(32, 96) == 32


def test_maps_with_and_without_copies_of_weights_are_read_without(monkeypatch):
    """The kernels choose between the maps' weights in a loop, so these must be of one dtype."""
    weights = [torch.zeros(4, 4), torch.zeros(4, 4), torch.zeros(4), torch.zeros(4)]
    monkeypatch.setattr(op, "copies", lambda one: one.bfloat16() if one is weights[1] else one)
    found = op._filled(((), (), (), tuple(weights)), torch.zeros(1))
    assert [one.dtype for one in found[-1]] == [torch.float32] * 4


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_so_do_other_activations(activation):
    compare((True, True, 1), activation)


def test_dropout_is_the_hash_of_seed_layer_row_and_column_forward_and_backward():
    seed = torch.tensor([123456789012345], device=DEVICE)
    rates, salt = (0.3, 0.2, 0.4), 5

    def drop(site):
        def dropped(found):
            none = slice(0, 0)
            lines, width = B * N, found.shape[-1]
            grid = Grid(
                (1, 1, lines, width),
                torch.tensor([site], device=DEVICE),
                torch.tensor([salt], device=DEVICE),
                torch.arange(lines, device=DEVICE)[:, None],
                torch.arange(width, device=DEVICE),
                (none,) * 4,
            )
            kept = dropout.kept(grid, seed, rates[site]).view(found.shape)
            return found * kept / (1 - rates[site])

        return dropped

    compare((True, True, 2), rates=rates, seed=seed, drops=tuple(map(drop, range(3))), salt=salt)


def test_dropout_drops_its_share_and_differs_between_seeds_sites_and_layers():
    made = modules(True, False, 0)
    nn.init.zeros_(made["out"].weight), nn.init.ones_(made["out"].bias)
    weights = [one.detach().to(WIDE) for one in listed(made)]
    found = []
    for number, salt in ((1, 0), (2, 0), (1, 1), (1, 0)):
        options = RowOptions(True, False, 0, "gelu", (0.25, 0.0, 0.0), (1e-5, 1e-5), salt, H, DTYPE)
        zeros, seed = torch.zeros(31, 7, D, dtype=WIDE, device=DEVICE), torch.tensor([number], device=DEVICE)
        heads = torch.zeros(31, H, 7, D // H, dtype=DTYPE, device=DEVICE)
        last, _ = op.run(zeros, heads, seed, weights, options)
        assert last.unique().tolist() == pytest.approx([0.0, 4 / 3])
        found.append(last == 0)
        assert abs(found[-1].double().mean() - 0.25) < 0.02
    assert torch.equal(found[0], found[3])
    for other in found[1:3]:  # independent: both dropped in a sixteenth of the places
        assert abs((found[0] & other).double().mean() - 1 / 16) < 0.01


def test_a_second_derivative_is_that_of_the_modules():
    if HALVED:
        pytest.skip("products in bfloat16 have no second derivative to compare")
    made = modules(True, True, 1)
    x, mixed = (one.requires_grad_() for one in inputs())
    options = RowOptions(True, True, 1, "gelu", (0.0,) * 3, (1e-5, 1e-5), 0, H, DTYPE)

    def second(results):
        (first,) = torch.autograd.grad(sum(one.sin().sum() for one in results), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, made["rise"].weight])

    last, ys = op.run(x, mixed, None, listed(made), options)
    for mine, theirs in zip(second([last, *ys]), second(by_modules(made, x, mixed)), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_bits_repeat():
    made = modules(True, True, 3)
    x, mixed = inputs()
    options = RowOptions(True, True, 3, "gelu", (0.1,) * 3, (1e-5, 1e-5), 0, H, DTYPE)
    seed = torch.tensor([77], device=DEVICE)

    def graded():
        weights = [one.detach().to(WIDE).requires_grad_() for one in listed(made)]
        last, ys = op.run(x.to(WIDE), mixed.to(DTYPE), seed, weights, options)
        return torch.autograd.grad(sum(one.double().sin().sum() for one in (last, *ys)), weights)

    assert all(torch.equal(one, other) for one, other in zip(graded(), graded(), strict=True))


@pytest.fixture
def kernels(monkeypatch):
    """Stacks use the kernels, also on the CPU."""
    monkeypatch.setattr(fast_path, "enabled", True)
    monkeypatch.setattr(fused_rows, "on_cpu", True)


def graded(stack, x, pull):
    """The result of a stack and the gradients of its input and weights."""
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        found = stack(x)
    return found, *torch.autograd.grad(found, [x, *stack.parameters()], pull)


def equal_up_to_rounding(found, stack, x, pull):
    """Compare with the modules in float64: on a GPU, no further from them than the modules in bfloat16 are, twice."""
    coarse = graded(stack, x, pull)
    exact = copy.deepcopy(stack).double()
    rows = x.detach().double().requires_grad_()
    result = exact(rows)
    wanted = [result, *torch.autograd.grad(result, [rows, *exact.parameters()], pull.double())]
    # The gradient of the keys' bias is zero: what it holds is the rounding of the others.
    least = 1.0 if not HALVED else max(theirs.detach().norm().item() for theirs in wanted) / 10
    for mine, rounded, theirs in zip(found, coarse, wanted, strict=True):
        size = theirs.norm().clamp(min=least)
        off, known = ((one.double() - theirs).norm() / size for one in (mine, rounded))
        assert off < (TOLERANCE if not HALVED else max(TOLERANCE, 2 * known))


ATTENTIONS = [
    "multihead",
    "causal",
    "static-memory(slots=5)",
    "dynamic-memory(slots=5,segment=3,bidirectional=true)",
    "dynamic-memory(slots=5,segment=6,bidirectional=true)",
    "dynamic-memory(slots=5,segment=3)",
    "dynamic-memory(slots=3,segment=4,update=memory,bidirectional=true)",
]


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_stack_of_layers_equals_its_modules(monkeypatch, kernels, attention):
    torch.manual_seed(3)
    causal = attention == "causal"
    # In half precision a sum beside the corner of relu may fall on its other side, in the kernels or in the modules.
    activation = "gelu" if HALVED else "relu"
    stack = Stack(D, 2, attention, num_heads=H, hidden=HIDDEN, causal=causal, activation=activation).to(DEVICE, WIDE)
    x = torch.randn(B, N, D, dtype=WIDE, device=DEVICE, requires_grad=True)
    pull = torch.randn_like(x)
    assert layers.refusal(stack.layers, x, None) == "" or DEVICE == "cuda"
    found = graded(stack, x, pull)
    monkeypatch.setattr(fast_path, "enabled", False)
    equal_up_to_rounding(found, stack, x, pull)


def test_a_stack_compiles_to_one_graph(kernels):
    torch.manual_seed(3)
    stack = Stack(D, 2, "causal", num_heads=H, causal=True, dropout=0.1).to(DEVICE, WIDE)
    x = torch.randn(B, N, D, dtype=WIDE, device=DEVICE)
    compiled = torch.compile(stack, fullgraph=True, backend="aot_eager")
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        torch.manual_seed(9)
        found = compiled(x)
        torch.manual_seed(9)
        assert torch.equal(found, stack(x))
        found.sum().backward()
    assert all(parameter.grad is not None for parameter in stack.parameters())


class Counted:
    """A kernel that counts its launches."""

    def __init__(self, kernel):
        self.kernel, self.count = kernel, 0

    def __getitem__(self, grid):
        self.count += 1
        return self.kernel[grid]


MODELS = {
    "decoder": (Problem.of(Tokens(11), NextToken(11)), 3),
    "static-transformer(slots=5)": (Problem.of(Vectors(5), OneOf(3)), 3),
    "dynamic-transformer(slots=5,segment=3)": (Problem.of(Vectors(5), OneOf(3)), 3),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_models_really_use_the_kernels(monkeypatch, kernels, name, compiled):
    forward = Counted(row_kernels.rows_forward)
    backward = Counted(row_kernels.rows_backward)
    monkeypatch.setattr(row_kernels, "rows_forward", forward)
    monkeypatch.setattr(row_kernels, "rows_backward", backward)
    problem, calls = MODELS[name]
    plain, _, options = name.partition("(")
    memory = plain.replace("transformer", "memory")
    attention = {"attention": f"{memory}({options}"} if options else {}
    model = models.build(plain, problem, layers=2, dim=D, num_heads=H, **attention).to(DEVICE)
    read = torch.compile(model, backend="aot_eager") if compiled else model
    data = torch.randn(B, N, 5) if options else torch.randint(1, 11, (B, N))
    with torch.autocast(DEVICE, torch.bfloat16):  # an embedding of vectors gives rows in bfloat16
        found = read(Batch.of(data.to(DEVICE)))
    found.float().square().sum().backward()
    assert (forward.count, backward.count) == (calls, calls)
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


REFUSED = {
    "post": ({"norm": "post"}, "norm=pre"),
    "none": ({"residual": False}, "residual"),
    "rms": ({"norm_type": "rms"}, "LayerNorm"),
    "gated": ({"gated": True}, "gated"),
    "tanh": ({"activation": "tanh"}, "activation is tanh"),
    "hidden": ({"hidden": 37}, "37 wide"),
    "no bias": ({"feed_forward_bias": False}, "bias"),
    "rotary": ({"attention": "multihead(positions=rotary)"}, "linear maps"),
    "grouped": ({"attention": "multihead(kv_heads=1)"}, "linear maps"),
    "linear": ({"attention": "linear"}, "linear maps"),
    "one segment": ({"attention": f"dynamic-memory(segment={N})"}, f"fewer than {N + 1} rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernels_do_not_know_is_refused_with_a_reason(kernels, case):
    options, why = REFUSED[case]
    options = {"attention": "multihead", "num_heads": H, **options}
    stack = Stack(D, 1, **options).to(DEVICE)
    x = torch.randn(B, N, D, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert why in layers.refusal(stack.layers, x, None)
        assert stack(x).shape == x.shape


def test_circumstances_are_refused_with_a_reason(monkeypatch, kernels):
    stack = Stack(D, 1, "multihead", num_heads=H).to(DEVICE)
    x = torch.randn(B, N, D, device=DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=HALVED):
        assert layers.refusal(stack.layers, x, None) == ""
        assert "mask" in layers.refusal(stack.layers, x, masks.causal())
        assert "width is 24" in layers.refusal(Stack(24, 1, "multihead").layers, x[:, :, :24], None)
        handle = stack.layers[0].feed_forward.rise.register_forward_hook(lambda *given: None)
        assert "hooks" in layers.refusal(stack.layers, x, None)
        handle.remove()
        assert layers.refusal(stack.layers, x, None) == ""
        with monkeypatch.context() as patch:  # a smaller GPU
            patch.setattr(layers.gpu, "shared_memory", lambda device: 99 * 1024)
            patch.setattr(torch.Tensor, "is_cuda", True)
            assert "99 KiB of shared memory, not 168" in layers.refused_rows(x)
    monkeypatch.setattr(fused_rows, "on_cpu", False)
    if DEVICE == "cpu":
        assert "CUDA" in layers.refusal(stack.layers, x, None)
    else:
        assert "autocast" in layers.refusal(stack.layers, x, None)
