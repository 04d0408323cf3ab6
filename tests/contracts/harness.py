"""One case, computed three times: by the oracle in float64, by the plain formula in its dtype, by regard."""

import zlib
from dataclasses import dataclass, field
from functools import lru_cache

import torch

import regard
from tests import oracle
from tests.contracts import entries
from tests.contracts.entries import SELF, Sizes

EVERYTHING = ("auto", "reference", "tiled")  # these run every valid request; sdpa, flex and triton may refuse


@dataclass(frozen=True)
class Case:
    """A request by the names of its entries."""

    score: str = "scaled_dot"
    mask: str = "none"
    bias: str = "none"
    normalize: str = "softmax"
    dtype: torch.dtype = torch.float32
    sizes: Sizes = field(default=SELF)
    scale: float | None = None
    sink: bool = False

    def __str__(self):
        s, dtype = self.sizes, str(self.dtype).removeprefix("torch.")
        extra = (f" scale {self.scale}" if self.scale is not None else "") + (" sink" if self.sink else "")
        return f"{self.score}, {self.mask}, {self.bias}, {self.normalize}, {dtype} q{s.q} k{s.k}{extra}"

    @property
    def normalizer(self):
        return {**entries.NORMALIZERS, **entries.CUSTOM_NORMALIZERS}[self.normalize]


@lru_cache(maxsize=64)
def leaves(case):
    """Every differentiable tensor of the case, in float64, rounded to the case's dtype."""
    s = case.sizes
    generator = torch.Generator().manual_seed(zlib.crc32(str(case).encode()))
    shapes = {"query": (s.b, s.h, s.q, s.d), "key": (s.b, s.g, s.k, s.d), "value": (s.b, s.g, s.k, s.v)}
    for name, shape in entries.SCORES[case.score].shapes(s).items():
        shapes["score " + name] = shape
    for name, shape in entries.BIASES[case.bias].shapes(s).items():
        shapes["bias " + name] = shape
    if case.sink:
        shapes["sink"] = (s.h,)
    found = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }
    if "bias center" in found:
        found["bias center"] = found["bias center"] * 3 + s.k / 2
    found["out gradient"] = torch.randn(s.b, s.h, s.q, s.v, generator=generator, dtype=torch.float64)
    found["lse gradient"] = torch.randn(s.b, s.h, s.q, generator=generator, dtype=torch.float64)
    return {name: x.to(case.dtype).double() for name, x in found.items()}


@lru_cache(maxsize=64)
def predicate_mask(mask, sizes):
    return oracle.visible(entries.MASKS[mask].build(sizes, "cpu")[1], sizes.b, sizes.h, sizes.q, sizes.k)


def inputs(case, dtype, device, gradients):
    """Fresh copies of the leaves, and what belongs to the score and to the bias among them."""
    found = {}
    for name, x in leaves(case).items():
        x = x.to(device=device, dtype=dtype).clone()
        found[name] = x.requires_grad_() if gradients and "gradient" not in name else x
    parts = {
        kind: {name.removeprefix(kind + " "): x for name, x in found.items() if name.startswith(kind + " ")}
        for kind in ("score", "bias")
    }
    return found, parts["score"], parts["bias"]


def collect(out, lse, found, gradients, with_lse):
    """Results by name; gradients of out and logsumexp pulled back to every leaf."""
    results = {"out": out.detach()}
    if with_lse:
        results["logsumexp"] = lse.detach()
    if not gradients:
        return results
    wanted = {name: x for name, x in found.items() if x.requires_grad}
    outputs, pulls = [out], [found["out gradient"]]
    if with_lse:
        outputs.append(lse)
        pulls.append(found["lse gradient"].to(lse.dtype))
    grads = torch.autograd.grad(outputs, list(wanted.values()), pulls, allow_unused=True)
    for (name, x), grad in zip(wanted.items(), grads, strict=True):
        assert grad is None or (grad.shape == x.shape and grad.dtype == x.dtype), name
        results["gradient of " + name] = torch.zeros_like(x) if grad is None else grad
    return results


def by_formula(case, dtype, device, gradients, with_lse, which):
    """The definition in a dtype; which 1 is exact, 2 the plain formula."""
    s = case.sizes
    found, of_score, of_bias = inputs(case, dtype, device, gradients)
    bias = entries.BIASES[case.bias].formula(of_bias, s)
    out, lse, _, _ = oracle.attend(
        found["query"],
        found["key"],
        found["value"],
        score=entries.SCORES[case.score].formula,
        tensors=of_score,
        seen=predicate_mask(case.mask, s).to(device),
        bias=None if bias is None else bias.to(device=device, dtype=dtype),
        normalizer=case.normalizer[which],
        scale=case.scale,
        sink=found.get("sink"),
    )
    return collect(out, lse, found, gradients, with_lse)


@lru_cache(maxsize=256)
def truth(case, gradients=True, with_lse=True):
    return by_formula(case, torch.float64, "cpu", gradients, with_lse, which=1)


@lru_cache(maxsize=256)
def plain(case, device="cpu", gradients=True, with_lse=True):
    """Promise 7: the plain formula; where it overflows, in float32 and rounded."""
    found = by_formula(case, case.dtype, device, gradients, with_lse, which=2)
    if all(bool(x.isfinite().all()) for name, x in found.items() if name != "logsumexp"):
        return found
    found = by_formula(case, torch.float32, device, gradients, with_lse, which=2)
    return {name: x.to(case.dtype) for name, x in found.items()}


def request(case, device, gradients=True, bias_gradient=True):
    """The positional and keyword arguments of regard.attend for a case, and its leaves."""
    found, of_score, of_bias = inputs(case, case.dtype, device, gradients)
    if not bias_gradient:
        for x in of_bias.values():
            x.requires_grad_(False)
    arguments = {
        "score": entries.SCORES[case.score].build(of_score),
        "mask": entries.MASKS[case.mask].build(case.sizes, device)[0],
        "bias": entries.BIASES[case.bias].build(of_bias, case.sizes),
        "normalize": case.normalizer[0],
        "scale": case.scale,
        "sink": found.get("sink"),
    }
    return (found["query"], found["key"], found["value"]), arguments, found


def by_regard(case, impl, device, gradients=True, with_lse=True, bias_gradient=True):
    """What regard answers, checked for shape and dtype."""
    qkv, arguments, found = request(case, device, gradients, bias_gradient)
    if with_lse:
        out, lse = regard.attend(*qkv, **arguments, return_logsumexp=True, impl=impl)
        assert lse.shape == (case.sizes.b, case.sizes.h, case.sizes.q)
    else:
        out, lse = regard.attend(*qkv, **arguments, impl=impl), None
    s = case.sizes
    assert out.shape == (s.b, s.h, s.q, s.v)
    assert out.dtype == case.dtype
    return collect(out, lse, found, gradients, with_lse)


def assert_within(found, exact, formula, factor, name, slack=0.0):
    """max|found − exact| ≤ factor·max|formula − exact| + 4·eps·max|exact|, with the infinities in place."""
    eps = torch.finfo(formula.dtype).eps
    found, formula = found.double().cpu(), formula.double().cpu()
    finite = exact.isfinite()
    assert torch.equal(found[~finite], exact[~finite]), f"{name}: infinities elsewhere than in the reference"
    if not finite.any():
        return
    found, exact, formula = found[finite], exact[finite], formula[finite]
    assert found.isfinite().all(), f"{name}: not finite where the reference is"
    error = (found - exact).abs().max()
    if eps < 1e-15:  # float64 against float64: the plain formula is the reference
        bound = 512 * eps * exact.abs().max()
    else:
        bound = factor * (formula - exact).abs().max() + 4 * eps * exact.abs().max()
    bound += slack
    assert error <= bound, f"{name}: error {error:.3e}, allowed {bound:.3e}, largest {exact.abs().max():.3e}"


def check(case, impl, device, gradients=True, with_lse=True, bias_gradient=True):
    """Outputs to 2×, gradients to 3× the error of the plain formula."""
    found = by_regard(case, impl, device, gradients, with_lse, bias_gradient)
    exact, formula = truth(case, gradients, with_lse), plain(case, device, gradients, with_lse)
    for name, x in found.items():
        assert_within(x, exact[name], formula[name], 3 if "gradient" in name else 2, name)
