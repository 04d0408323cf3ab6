"""The six functions of the Neural Turing Machine: numbers worked by hand, loops over the definition, extreme inputs."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from regard.errors import BadType, BadValue, RegardError
from regard.nn import ntm

B, N, M = 2, 5, 3


def row(*numbers, dtype=torch.float64):
    return torch.tensor([numbers], dtype=dtype)


# One head goes through a step by hand. Memory: slots (1,0), (0,1), (−1,0).
#   content    key (3,0), strength ln 2: cosines 1, 0, −1; exp(ln 2 · cos) = 2, 1, ½; sum 7/2     → 4/7, 2/7, 1/7
#   interpolate gate ½ with (0,1,0): (4,2,1)/14 + (0,7,0)/14                                       → (4, 9, 1)/14
#   shift      ⅛ one back, ½ stays, ⅜ one on: slot 0 gets ½·4 + ⅜·1 (from slot 2) + ⅛·9 = 3.5,
#              slot 1 ½·9 + ⅜·4 + ⅛·1 = 6.125, slot 2 ½·1 + ⅜·9 + ⅛·4 = 4.375, all over 14         → (4, 7, 5)/16
#   sharpen    gamma 2: 16, 49, 25 of 90                                                           → (16, 49, 25)/90
#   read       16·(1,0) + 49·(0,1) + 25·(−1,0), over 90                                            → (−9, 49)/90
MEMORY = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)


def close(found, *expected):
    torch.testing.assert_close(found, row(*expected), rtol=1e-12, atol=1e-12)


def test_content_address_computed_by_hand():
    found = ntm.content_address(MEMORY, row(3, 0), row(2.0).log())
    close(found, 4 / 7, 2 / 7, 1 / 7)


def test_interpolate_computed_by_hand():
    close(ntm.interpolate(row(4 / 7, 2 / 7, 1 / 7), row(0, 1, 0), row(0.5)), 4 / 14, 9 / 14, 1 / 14)
    close(ntm.interpolate(row(0.25, 0.75), row(1, 0), row(1.0)), 0.25, 0.75)
    close(ntm.interpolate(row(0.25, 0.75), row(1, 0), row(0.0)), 1, 0)


def test_shift_computed_by_hand():
    close(ntm.shift(row(4 / 14, 9 / 14, 1 / 14), row(1 / 8, 1 / 2, 3 / 8)), 4 / 16, 7 / 16, 5 / 16)


def test_sharpen_computed_by_hand():
    close(ntm.sharpen(row(4 / 16, 7 / 16, 5 / 16), row(2.0)), 16 / 90, 49 / 90, 25 / 90)


def test_read_computed_by_hand():
    close(ntm.read(MEMORY, row(16 / 90, 49 / 90, 25 / 90)), -9 / 90, 49 / 90)


def test_write_computed_by_hand():
    # Weights ½, ¼, ¼; erase (1, ½); add (4, −2). Slot 0: 1·(1 − ½·1) + ½·4 = 2.5 and 0·(1 − ½·½) + ½·(−2) = −1;
    # slot 1: 0 + ¼·4 = 1 and 1·(1 − ¼·½) − ¼·2 = 0.375; slot 2: −1·(1 − ¼) + 1 = 0.25 and 0 − 0.5.
    found = ntm.write(MEMORY, row(0.5, 0.25, 0.25), row(1, 0.5), row(4, -2))
    expected = torch.tensor([[[2.5, -1.0], [1.0, 0.375], [0.25, -0.5]]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_erase_one_and_add_nothing_clears_a_slot_and_no_other():
    found = ntm.write(MEMORY, row(0, 1, 0), row(1, 1), row(0, 0))
    assert (found[0, 1] == 0).all()
    assert (found[0, [0, 2]] == MEMORY[0, [0, 2]]).all()


def test_erasing_comes_before_adding():
    found = ntm.write(MEMORY, row(1, 0, 0), row(1, 1), row(7, 8))
    assert found[0, 0].tolist() == [7, 8]  # the other order would leave zeros


def test_functions_are_deterministic_and_do_not_modify_arguments():
    arguments = [MEMORY.clone(), row(0.5, 0.25, 0.25), row(1, 0.5), row(4, -2)]
    copies = [x.clone() for x in arguments]
    assert torch.equal(ntm.write(*arguments), ntm.write(*arguments))
    assert all(torch.equal(x, y) for x, y in zip(arguments, copies, strict=True))


def shifted_by_loops(weights, kernel):
    """Every weight of every slot, carried by every offset, one at a time."""
    found = torch.zeros_like(weights)
    reach = kernel.shape[1] // 2
    for b in range(weights.shape[0]):
        for slot in range(weights.shape[1]):
            for offset in range(-reach, reach + 1):
                goal = slot + offset
                while goal < 0:
                    goal += weights.shape[1]
                while goal >= weights.shape[1]:
                    goal -= weights.shape[1]
                found[b, goal] += weights[b, slot] * kernel[b, offset + reach]
    return found


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 11])
@pytest.mark.parametrize("reach", [0, 1, 2, 4, 7])
def test_shift_equals_loops_also_when_the_kernel_is_wider_than_the_memory(slots, reach):
    weights, kernel = (torch.rand(B, slots, dtype=torch.float64), torch.rand(B, 2 * reach + 1, dtype=torch.float64))
    torch.testing.assert_close(ntm.shift(weights, kernel), shifted_by_loops(weights, kernel), rtol=1e-12, atol=1e-12)


def test_plus_one_moves_to_the_next_slot_and_wraps():
    onwards = row(0, 0, 1)
    close(ntm.shift(row(0, 1, 0, 0), onwards), 0, 0, 1, 0)
    close(ntm.shift(row(0, 0, 0, 1), onwards), 1, 0, 0, 0)
    close(ntm.shift(row(1, 0, 0, 0), row(1, 0, 0)), 0, 0, 0, 1)


@pytest.mark.parametrize("gamma", [1.0, 50.0, 1e3, 1e5, 1e30])
def test_sharpening_uniform_weights_leaves_them_uniform(gamma):
    weights = torch.full((1, 128), 1 / 128, requires_grad=True)
    found = ntm.sharpen(weights, row(gamma, dtype=torch.float32))
    torch.testing.assert_close(found, weights.detach(), rtol=1e-5, atol=0)
    assert abs(float(found.detach().sum()) - 1) < 1e-5
    found.square().sum().backward()
    assert weights.grad.isfinite().all()


def test_sharpening_by_one_changes_nothing_and_by_much_leaves_the_largest():
    weights = torch.rand(3, 17).softmax(-1)
    ones = torch.ones(3, 1)
    torch.testing.assert_close(ntm.sharpen(weights, ones), weights)
    found = ntm.sharpen(weights, 1e5 * ones)
    torch.testing.assert_close(found.max(-1).values, torch.ones(3))
    assert torch.equal(found.argmax(-1), weights.argmax(-1))


@pytest.mark.parametrize("gamma", [1.0, 1.5, 7.0, 1e5])
def test_weights_of_exactly_zero_stay_zero_with_finite_gradients(gamma):
    weights = torch.tensor([[0.0, 0.25, 0.75, 0.0]], requires_grad=True)
    strength = torch.tensor([[gamma]], requires_grad=True)
    found = ntm.sharpen(weights, strength)
    assert (found[0, [0, 3]] == 0).all()
    (found * torch.tensor([3.0, -1.0, 2.0, 5.0])).sum().backward()
    assert weights.grad.isfinite().all()
    assert strength.grad.isfinite().all()


def test_at_gamma_one_even_a_zero_has_the_gradient_of_a_division_by_the_sum():
    weights = torch.tensor([[0.0, 0.25, 0.75]], dtype=torch.float64, requires_grad=True)
    pull = row(3, -1, 2)
    (found,) = torch.autograd.grad((ntm.sharpen(weights, row(1.0)) * pull).sum(), weights)
    (expected,) = torch.autograd.grad((weights / weights.sum() * pull).sum(), weights)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 80.0])
def test_tiny_negative_weights_from_rounding_count_as_zero(gamma):
    weights = torch.tensor([[-1e-9, 0.5, 0.5, -1e-30]], requires_grad=True)
    found = ntm.sharpen(weights, torch.tensor([[gamma]]))
    torch.testing.assert_close(found.detach(), torch.tensor([[0.0, 0.5, 0.5, 0.0]]))
    found.square().sum().backward()
    assert weights.grad.isfinite().all()


def test_a_row_of_zero_weights_stays_zero():
    weights = torch.zeros(1, 4, requires_grad=True)
    found = ntm.sharpen(weights, torch.tensor([[3.0]]))
    assert (found == 0).all()
    found.sum().backward()
    assert (weights.grad == 0).all()


@pytest.mark.parametrize("silent", ["memory", "key", "both", "one slot"])
def test_a_slot_or_key_of_zero_norm_has_similarity_zero_and_gradient_zero(silent):
    memory, key = torch.randn(1, 4, 3), torch.randn(1, 3)
    if silent in ("memory", "both"):
        memory.zero_()
    if silent in ("key", "both"):
        key.zero_()
    if silent == "one slot":
        memory[0, 2] = 0
    memory.requires_grad_(), key.requires_grad_()
    strength = torch.tensor([[5.0]], requires_grad=True)
    found = ntm.content_address(memory, key, strength)
    if silent != "one slot":
        torch.testing.assert_close(found.detach(), torch.full((1, 4), 0.25))
    found.square().sum().backward()
    assert memory.grad.isfinite().all() and key.grad.isfinite().all() and strength.grad.isfinite().all()
    assert (memory.grad[0, 2] == 0).all() or silent == "key"
    assert silent not in ("key", "both") or (key.grad == 0).all()


@pytest.mark.parametrize("size", [1e-25, 1e-6, 1.0, 1e25])
def test_content_address_does_not_depend_on_norms(size):
    memory, key = torch.randn(2, 4, 3), torch.randn(2, 3)
    expected = ntm.content_address(memory, key, torch.ones(2, 1))
    torch.testing.assert_close(ntm.content_address(memory * size, key, torch.ones(2, 1)), expected)
    torch.testing.assert_close(ntm.content_address(memory, key * size, torch.ones(2, 1)), expected)


@pytest.mark.slow
def test_ten_thousand_steps_keep_the_sum_of_the_weights():
    weights = torch.zeros(1, 128)
    weights[0, 0] = 1
    kernels = torch.randn(100, 1, 3).softmax(-1)
    memory, keys = torch.randn(1, 128, 6), torch.randn(100, 1, 6)
    gate, gamma, strength = torch.tensor([[0.05]]), torch.tensor([[1.02]]), torch.tensor([[3.0]])
    worst = 0.0
    for step in range(10_000):
        if step % 500 == 0:
            content = ntm.content_address(memory, keys[step // 500], strength)
            weights = ntm.interpolate(content, weights, gate)
        weights = ntm.sharpen(ntm.shift(weights, kernels[step % 100]), gamma)
        worst = max(worst, abs(float(weights.sum()) - 1))
    assert worst < 1e-5


def leaves(*shapes):
    return [torch.rand(*shape, dtype=torch.float64).add_(0.1).requires_grad_() for shape in shapes]


FUNCTIONS = {
    "content_address": ((B, N, M), (B, M), (B, 1)),
    "interpolate": ((B, N), (B, N), (B, 1)),
    "shift": ((B, N), (B, 3)),
    "sharpen": ((B, N), (B, 1)),
    "read": ((B, N, M), (B, N)),
    "write": ((B, N, M), (B, N), (B, M), (B, M)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_and_second_derivatives_equal_finite_differences(name):
    arguments = leaves(*FUNCTIONS[name])
    assert gradcheck(getattr(ntm, name), arguments)
    assert gradgradcheck(getattr(ntm, name), arguments)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_empty_batch_gives_an_empty_result(name):
    shapes = FUNCTIONS[name]
    found = getattr(ntm, name)(*[torch.rand(0, *shape[1:]) for shape in shapes])
    assert found.shape[0] == 0


ARGUMENTS = {
    "content_address": ["memory", "key", "strength"],
    "interpolate": ["weights", "previous", "gate"],
    "shift": ["weights", "kernel"],
    "sharpen": ["weights", "gamma"],
    "read": ["memory", "weights"],
    "write": ["memory", "weights", "erase", "add"],
}


@pytest.mark.parametrize(
    ("name", "index"), [(name, index) for name in ARGUMENTS for index in range(len(ARGUMENTS[name]))]
)
def test_errors_about_shape_or_type_name_the_argument(name, index):
    argument = ARGUMENTS[name][index]
    good = [x.detach() for x in leaves(*FUNCTIONS[name])]
    for wrong in (good[index][0], good[index][:1], torch.cat([good[index]] * 2, -1)):
        if index == 0 and wrong.dim() == good[0].dim():  # then the error names another argument
            continue
        with pytest.raises(BadValue, match=f"^{argument}: "):
            getattr(ntm, name)(*good[:index], wrong, *good[index + 1 :])
    with pytest.raises(BadType, match=f"^{argument}: "):
        getattr(ntm, name)(*good[:index], None, *good[index + 1 :])
    if index:
        with pytest.raises(BadType, match=f"^{argument}: .*float32"):
            getattr(ntm, name)(*good[:index], good[index].float(), *good[index + 1 :])


def test_a_kernel_of_even_width_is_refused():
    with pytest.raises(RegardError, match=r"^kernel: expected an odd number of offsets"):
        ntm.shift(torch.rand(1, 5), torch.rand(1, 4))


def test_non_finite_values_show():
    nonfinite = torch.tensor([[0.5, torch.nan, 0.5]])
    assert ntm.sharpen(nonfinite, torch.ones(1, 1)).isnan().any()
    assert ntm.shift(nonfinite, torch.tensor([[0.0, 1.0, 0.0]])).isnan().any()
    memory = torch.randn(1, 3, 2)
    memory[0, 1, 0] = torch.nan
    assert ntm.content_address(memory, torch.ones(1, 2), torch.ones(1, 1)).isnan().any()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_under_autocast_dtypes_may_be_mixed(name):
    arguments = [x.detach().float() for x in leaves(*FUNCTIONS[name])]
    expected = getattr(ntm, name)(*arguments)
    with torch.autocast("cpu", torch.bfloat16):
        found = getattr(ntm, name)(arguments[0], *[x.bfloat16() for x in arguments[1:]])
    torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
