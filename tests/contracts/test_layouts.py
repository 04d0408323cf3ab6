"""Promise 8: inputs are not modified, outputs do not alias them, any strides are fine, forward and backward."""

import pytest
import torch

import regard
from regard import biases, masks, scores
from tests.contracts import entries
from tests.contracts.harness import EVERYTHING, Case, request

B, H, Q, K, D, V = 2, 3, 19, 23, 5, 7


def transposed(x):
    """Kept as (b, length, h, dim), the layout of a projection."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def every_second(x):
    wide = x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])
    wide[..., ::2] = x
    return wide[..., ::2]


def offset(x):
    room = x.new_zeros(x.numel() + 13)
    room[13:] = x.reshape(-1)
    return room[13:].view(x.shape)


def columns(x):
    return x.transpose(2, 3).contiguous().transpose(2, 3)


def inside(x):
    """A window into a larger tensor: every stride larger than needed."""
    room = x.new_full([n + 3 for n in x.shape], float("nan"))
    part = room[1:-2, 1:-2, 1:-2, 1:-2]
    part.copy_(x)
    return part


LAYOUTS = {
    "transposed": transposed,
    "last stride 2": every_second,
    "storage offset": offset,
    "columns": columns,
    "inside a larger tensor": inside,
}


def draw(device):
    return [torch.randn(B, H, n, m, device=device) for n, m in ((Q, D), (K, D), (K, V))]


def run(qkv, impl, pull=None, **arguments):
    leaves = [x.detach().requires_grad_() for x in qkv]
    out = regard.attend(*leaves, impl=impl, **arguments)
    return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out) if pull is None else pull)]


def assert_same(found, expected):
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_inputs_equal_contiguous_ones(layout, impl, device):
    qkv = draw(device)
    strided = [LAYOUTS[layout](x) for x in qkv]
    assert all(torch.equal(x, y) for x, y in zip(qkv, strided, strict=True))
    mask = masks.lengths(torch.tensor([K, 16], device=device))
    assert_same(run(strided, impl, mask=mask), run(qkv, impl, mask=mask))


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_expanded_inputs_equal_copies(impl, device):
    """Stride 0 in the batch, in the heads and in the length."""
    query, key, value = draw(device)
    stretched = [
        query[:1].expand(B, -1, -1, -1),
        key[:, :1].expand(-1, H, -1, -1),
        value[:, :, :1].expand(-1, -1, K, -1),
    ]
    assert any(0 in x.stride() for x in stretched)
    assert_same(run(stretched, impl), run([x.clone() for x in stretched], impl))


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_gradients_of_any_stride_equal_contiguous_ones(impl, device):
    qkv = draw(device)
    pull = torch.randn(B, H, Q, V, device=device)
    expected = run(qkv, impl, pull)
    for layout in LAYOUTS.values():
        assert_same(run(qkv, impl, layout(pull)), expected)
    one = torch.ones((), device=device)
    assert_same(run(qkv, impl, one.expand(B, H, Q, V)), run(qkv, impl, torch.ones(B, H, Q, V, device=device)))


@pytest.mark.parametrize("impl", EVERYTHING)
def test_strided_masks_biases_and_weights_equal_contiguous_ones(impl, device):
    qkv = draw(device)
    mask = torch.rand(K, Q, device=device).T > 0.3
    bias = torch.randn(K, Q, device=device).T
    weight = torch.randn(D, H, device=device).T
    sink = torch.randn(H, 2, device=device)[:, 1]
    arguments = {"mask": mask, "bias": bias, "score": scores.additive(weight), "sink": sink}
    copies = {
        "mask": mask.clone(memory_format=torch.contiguous_format),
        "bias": biases.dense(bias.clone(memory_format=torch.contiguous_format)),
        "score": scores.additive(weight.clone(memory_format=torch.contiguous_format)),
        "sink": sink.clone(),
    }
    assert_same(run(qkv, impl, **arguments), run(qkv, impl, **copies))


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("score", entries.SCORES)
def test_nothing_given_is_modified(score, impl, device):
    case = Case(score=score, mask="padding of both", bias="dense b h q k", sink=True, normalize="entmax15")
    qkv, arguments, found = request(case, device)
    before = {name: x.detach().clone() for name, x in found.items()}
    out, lse = regard.attend(*qkv, **arguments, return_logsumexp=True, impl=impl)
    (out.sum() + lse[lse.isfinite()].sum()).backward()
    for name, x in found.items():
        assert torch.equal(x.detach(), before[name]), name


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "padding"])
def test_outputs_share_no_memory_with_inputs(mask, impl, device):
    case = Case(mask=mask)
    qkv, arguments, _ = request(case, device, gradients=False)
    before = [x.clone() for x in qkv]
    out = regard.attend(*qkv, **arguments, impl=impl)
    out.fill_(3.0)
    assert all(torch.equal(x, y) for x, y in zip(qkv, before, strict=True))
    pointers = {x.untyped_storage().data_ptr() for x in qkv}
    assert out.untyped_storage().data_ptr() not in pointers


@pytest.mark.parametrize("impl", EVERYTHING)
def test_one_key_does_not_return_the_value_itself(impl, device):
    query, key, value = (torch.randn(B, H, 1, D, device=device) for _ in range(3))
    out = regard.attend(query, key, value, impl=impl)
    torch.testing.assert_close(out, value)
    assert out.untyped_storage().data_ptr() != value.untyped_storage().data_ptr()


@pytest.mark.parametrize("impl", EVERYTHING)
def test_the_same_tensor_may_be_query_key_and_value(impl, device):
    x = torch.randn(B, H, Q, D, device=device, requires_grad=True)
    apart = [x.detach().clone().requires_grad_() for _ in range(3)]
    (grad,) = torch.autograd.grad(regard.attend(x, x, x, impl=impl).square().sum(), x)
    grads = torch.autograd.grad(regard.attend(*apart, impl=impl).square().sum(), apart)
    torch.testing.assert_close(grad, sum(grads), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
@pytest.mark.parametrize("one", [0, 1, 2])
def test_only_what_requires_a_gradient_gets_one(one, impl, device):
    qkv = draw(device)
    expected = run(qkv, "reference")[1 + one]
    qkv[one].requires_grad_()
    out = regard.attend(*qkv, impl=impl)
    out.sum().backward()
    torch.testing.assert_close(qkv[one].grad, expected, rtol=1e-5, atol=1e-5)
    assert all(x.grad is None for i, x in enumerate(qkv) if i != one)


@pytest.mark.parametrize("impl", EVERYTHING)
@pytest.mark.parametrize("what", ["bias", "score weight", "sink", "gaussian center"])
def test_a_gradient_may_be_asked_of_one_parameter_alone(what, impl, device):
    qkv = draw(device)

    def out(x, impl):
        return regard.attend(
            *qkv,
            impl=impl,
            **{
                "bias": lambda: {"bias": x},
                "score weight": lambda: {"score": scores.general(x)},
                "sink": lambda: {"sink": x},
                "gaussian center": lambda: {"bias": biases.gaussian(x, 3.0)},
            }[what](),
        )

    shape = {"bias": (Q, K), "score weight": (D, D), "sink": (H,), "gaussian center": (B, H, Q)}[what]
    x = torch.randn(shape, device=device, requires_grad=True)
    (found,) = torch.autograd.grad(out(x, impl).square().sum(), x)
    (expected,) = torch.autograd.grad(out(x, "reference").square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert (found != 0).any()


@pytest.mark.parametrize("impl", [*EVERYTHING, "sdpa"])
def test_no_graph_is_recorded_without_gradients(impl, device):
    qkv = draw(device)
    assert not regard.attend(*qkv, impl=impl).requires_grad
    with torch.no_grad():
        assert not regard.attend(qkv[0].requires_grad_(), *qkv[1:], impl=impl).requires_grad
    with torch.inference_mode():
        regard.attend(*draw(device), impl=impl)
