"""One case, computed three times: by the oracle in float64, by the plain formula in its dtype, by regard.

The plain formula is computed in several orders of summation. Its error in a single order is accidental: it differs
between processors, and a bound made of it would let a right implementation fail on another machine.
"""

import zlib
from dataclasses import dataclass, field
from functools import lru_cache

import torch

import regard
from tests import oracle
from tests.contracts import entries
from tests.contracts.entries import SELF, Sizes
from tests.contracts.orders import LETTERS, ORIGINAL, draw_order

# In how many orders the plain formula is computed: a few will do for almost every result, and where they do not, many
# decide. (The bound is their largest error, so that the few never allow what the many would not.)
FEW_ORDERS, MANY_ORDERS = 4, 32
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
    seed: int = 0  # another draw of the same case

    def __str__(self):
        s, dtype = self.sizes, str(self.dtype).removeprefix("torch.")
        extra = (f" scale {self.scale}" if self.scale is not None else "") + (" sink" if self.sink else "")
        extra += f" seed {self.seed}" if self.seed else ""
        return f"{self.score}, {self.mask}, {self.bias}, {self.normalize}, {dtype} q{s.q} k{s.k}{extra}"

    @property
    def letters(self):
        """The axes of every leaf and result, by name; a table's own axes have no letter."""
        alphabet = Sizes(**{letter: letter for letter in "bhgqkdv"})
        found = dict(LETTERS)
        for kind, entry in (("score", entries.SCORES[self.score]), ("bias", entries.BIASES[self.bias])):
            found |= {f"{kind} {name}": shape for name, shape in entry.shapes(alphabet).items()}
        return found | {"gradient of " + name: letters for name, letters in found.items()}

    @property
    def free_axes(self):
        """The axes whose order is open: not those whose positions the score looks at; and `hard` has to choose one
        key, which is another one wherever rounding says so.
        """
        if self.normalize == "hard":
            return "bhg"
        return "bhgdv" if self.score.startswith(("shaw", "transformer_xl")) else "bhgqkdv"

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
    found = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    if "bias center" in found:
        found["bias center"] = found["bias center"] * 3 + s.k / 2
    found["out gradient"] = torch.randn(s.b, s.h, s.q, s.v, generator=generator, dtype=torch.float64)
    found["lse gradient"] = torch.randn(s.b, s.h, s.q, generator=generator, dtype=torch.float64)
    return {name: x.to(case.dtype).double() for name, x in found.items()}


@lru_cache(maxsize=64)
def predicate_mask(mask, sizes):
    return oracle.visible(entries.MASKS[mask].build(sizes, "cpu")[1], sizes.b, sizes.h, sizes.q, sizes.k)


def inputs(case, dtype, device, gradients, order=ORIGINAL):
    """Fresh copies of the leaves, and what belongs to the score and to the bias among them."""
    found, letters = {}, case.letters
    for name, x in leaves(case).items():
        x = order.apply(x, letters[name]).to(device=device, dtype=dtype).clone()
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


def ordered_bias(case, of_bias, order):
    """The values of the bias, (b|1,h|1,q|1,k|1), in an order, from its tensors in that order."""
    letters = case.letters
    original = {name: order.undo(x, letters["bias " + name]) for name, x in of_bias.items()}
    values = entries.BIASES[case.bias].formula(original, case.sizes)
    return None if values is None else order.apply(values, "bhqk"[4 - values.dim() :])


def by_formula(case, dtype, device, gradients, with_lse, which, order=ORIGINAL):
    """The definition in a dtype, summed in an order; which 1 is exact, 2 the plain formula."""
    found, of_score, of_bias = inputs(case, dtype, device, gradients, order)
    bias = ordered_bias(case, of_bias, order)
    out, lse, _, _ = oracle.attend(
        found["query"],
        found["key"],
        found["value"],
        score=entries.SCORES[case.score].formula,
        tensors=of_score,
        seen=order.apply(predicate_mask(case.mask, case.sizes), "bhqk").to(device),
        bias=None if bias is None else bias.to(device=device, dtype=dtype),
        normalizer=case.normalizer[which],
        scale=case.scale,
        sink=found.get("sink"),
    )
    return in_original_order(case, collect(out, lse, found, gradients, with_lse), order)


def in_original_order(case, results, order):
    letters = case.letters
    return {name: order.undo(x, letters[name]) for name, x in results.items()}


@lru_cache(maxsize=256)
def truth(case, gradients=True, with_lse=True):
    return by_formula(case, torch.float64, "cpu", gradients, with_lse, which=1)


@lru_cache(maxsize=1024)
def plain(case, number, device="cpu", gradients=True, with_lse=True):
    """Promise 7: the plain formula, in one of its orders; where it overflows, in float32 and rounded."""
    order = draw_order(case.sizes, number, case.free_axes) if number else ORIGINAL
    found = by_formula(case, case.dtype, device, gradients, with_lse, which=2, order=order)
    if all(bool(x.isfinite().all()) for name, x in found.items() if name != "logsumexp"):
        return found
    found = by_formula(case, torch.float32, device, gradients, with_lse, which=2, order=order)
    return {name: x.to(case.dtype) for name, x in found.items()}


def request(case, device, gradients=True, bias_gradient=True, order=ORIGINAL):
    """The positional and keyword arguments of regard.attend for a case, and its leaves.

    In another order than the original, positions mean nothing: the mask and the bias are then given as tensors.
    """
    found, of_score, of_bias = inputs(case, case.dtype, device, gradients, order)
    if not bias_gradient:
        for x in of_bias.values():
            x.requires_grad_(False)
    mask, bias = (
        entries.MASKS[case.mask].build(case.sizes, device)[0],
        entries.BIASES[case.bias].build(of_bias, case.sizes),
    )
    if order is not ORIGINAL:
        seen = order.apply(predicate_mask(case.mask, case.sizes), "bhqk").to(device)
        mask = None if mask is None else seen
        bias = None if bias is None else ordered_bias(case, of_bias, order).to(device, case.dtype)
    arguments = {
        "score": entries.SCORES[case.score].build(of_score),
        "mask": mask,
        "bias": bias,
        "normalize": case.normalizer[0],
        "scale": case.scale,
        "sink": found.get("sink"),
    }
    return (found["query"], found["key"], found["value"]), arguments, found


def by_regard(case, impl, device, gradients=True, with_lse=True, bias_gradient=True, order=ORIGINAL):
    """What regard answers, checked for shape and dtype."""
    qkv, arguments, found = request(case, device, gradients, bias_gradient, order)
    if with_lse:
        out, lse = regard.attend(*qkv, **arguments, return_logsumexp=True, impl=impl)
        assert lse.shape == (case.sizes.b, case.sizes.h, case.sizes.q)
    else:
        out, lse = regard.attend(*qkv, **arguments, impl=impl), None
    s = case.sizes
    assert out.shape == (s.b, s.h, s.q, s.v)
    assert out.dtype == case.dtype
    return in_original_order(case, collect(out, lse, found, gradients, with_lse), order)


def allowed_error(exact, formulas, factor):
    """factor·max|formula − exact| + 4·eps·max|exact|, the formula's error being the largest of all its orders."""
    eps = torch.finfo(formulas[0].dtype).eps
    finite = exact.isfinite()
    largest = exact[finite].abs().max().item()
    if eps < 1e-15:  # float64 against float64: the plain formula is the reference
        return 512 * eps * largest
    errors = [(formula.double().cpu()[finite] - exact[finite]).abs().max().item() for formula in formulas]
    return factor * max(errors) + 4 * eps * largest


def assert_within(found, exact, formula, factor, name, slack=0.0):
    """Hold a result to the error that `formula(number)`, the plain formula in that order, allows; with the infinities
    in place.
    """
    found, finite = found.double().cpu(), exact.isfinite()
    assert torch.equal(found[~finite], exact[~finite]), f"{name}: infinities elsewhere than in the reference"
    if not finite.any():
        return
    assert found[finite].isfinite().all(), f"{name}: not finite where the reference is"
    error = (found[finite] - exact[finite]).abs().max()
    for count in (FEW_ORDERS, MANY_ORDERS) if formula(0).dtype != torch.float64 else (1,):
        bound = allowed_error(exact, [formula(number) for number in range(count)], factor) + slack
        if error <= bound:
            return
    largest = exact[finite].abs().max()
    raise AssertionError(f"{name}: error {error:.3e}, allowed {bound:.3e}, largest {largest:.3e}")


def check(case, impl, device, gradients=True, with_lse=True, bias_gradient=True, order=ORIGINAL):
    """Outputs to 2×, gradients to 3× the error of the plain formula."""
    found = by_regard(case, impl, device, gradients, with_lse, bias_gradient, order)
    hold(found, case, device, gradients, with_lse)


def hold(found, case, device, gradients=True, with_lse=True):
    """Hold the results of a case to promise 7."""
    exact = truth(case, gradients, with_lse)
    for name, x in found.items():

        def formula(number, name=name):
            return plain(case, number, device, gradients, with_lse)[name]

        assert_within(x, exact[name], formula, 3 if "gradient" in name else 2, name)
