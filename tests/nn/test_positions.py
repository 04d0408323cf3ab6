"""Positions: hand-computed tables, rotation against complex numbers, and large positions."""

import cmath
import copy
import importlib.util
import math
import pickle

import pytest
import torch
from torch.autograd import gradcheck

from regard.errors import BadType, BadValue
from regard.nn import positions

ENCODINGS = ["sinusoidal", "sinusoidal-split", "learned", "half-wave", "none"]


def by_complex_numbers(x, places, base=10000.0):
    """Columns i and i + d/2 as one complex number, rotated by places · base^(−2i/d), one at a time."""
    turned = x.clone()
    batch, heads, length, dim = x.shape
    for b in range(batch):
        for l in range(length):
            place = float(places[b, l] if places.dim() == 2 else places[l])
            for i in range(dim // 2):
                turn = cmath.exp(1j * place * base ** (-2 * i / dim))
                for h in range(heads):
                    z = complex(x[b, h, l, i], x[b, h, l, i + dim // 2]) * turn
                    turned[b, h, l, i], turned[b, h, l, i + dim // 2] = z.real, z.imag
    return turned


def test_sinusoidal_is_the_papers_table_for_even_and_odd_widths():
    for dim in (1, 4, 7):
        table = positions.sinusoidal(11, dim)
        assert table.shape == (11, dim)
        assert table.dtype == torch.float32
        for place in range(11):
            for column in range(dim):
                angle = place / 10000 ** (2 * (column // 2) / dim)
                expected = math.sin(angle) if column % 2 == 0 else math.cos(angle)
                assert table[place, column].item() == pytest.approx(expected, abs=1e-7)
    assert positions.sinusoidal(0, 3).shape == (0, 3)


def test_half_wave_computed_by_hand():
    root = math.sqrt(0.5)
    expected = torch.tensor([[root, root, root], [1, 0, 1], [root, -root, root], [0, -1, 0]])
    assert torch.allclose(positions.half_wave(4, 3), expected, atol=1e-7)
    assert positions.half_wave(0, 3).shape == (0, 3)


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("base", [10000, 500.0])
def test_rotary_equals_rotation_of_complex_numbers(each, base):
    x = torch.randn(2, 3, 5, 6, dtype=torch.float64)
    places = torch.tensor([0, 1, 7, 100_003, 2])
    places = torch.stack([places, places.flip(0)]) if each else places
    assert torch.allclose(positions.rotary(x, places, base), by_complex_numbers(x, places, base), atol=1e-9)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_rotary_equals_that_of_llama():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    x, places = torch.randn(2, 3, 5, 8), torch.arange(3, 8)
    angles = places[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    angles = torch.cat([angles, angles], -1)[None]
    theirs, _ = apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
    assert torch.allclose(positions.rotary(x, places), theirs, atol=1e-5)


@pytest.mark.parametrize("shift", [1, 65_536, 1_000_000])
def test_scores_of_rotated_rows_depend_on_the_distance_only(shift):
    query, key = torch.randn(1, 1, 7, 16), torch.randn(1, 1, 7, 16)
    places = torch.arange(7)
    near = positions.rotary(query, places) @ positions.rotary(key, places + 3).mT
    far = positions.rotary(query, places + shift) @ positions.rotary(key, places + 3 + shift).mT
    assert torch.allclose(near, far, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_far_positions_stay_distinct_in_every_dtype_and_under_autocast(dtype):
    x = torch.ones(1, 1, 2, 4, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = positions.rotary(x, torch.tensor([65_536, 65_537]))
    exact = positions.rotary(x.double(), torch.tensor([65_536, 65_537]))
    assert found.dtype == dtype
    assert (found[0, 0, 0] - found[0, 0, 1]).abs().max() > 0.5
    assert (found.double() - exact).abs().max() <= torch.finfo(dtype).eps * 2


def test_rotary_is_differentiable_and_keeps_float64():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert positions.rotary(x, torch.arange(3)).dtype == torch.float64
    assert gradcheck(lambda x: positions.rotary(x, torch.arange(3)), x)
    assert positions.rotary(x[:, :, :0], torch.arange(0)).shape == (1, 2, 0, 4)


def test_errors_of_rotary_name_the_argument():
    with pytest.raises(BadValue, match="even"):
        positions.rotary(torch.randn(1, 1, 3, 5), torch.arange(3))
    with pytest.raises(BadValue, match=r"\(b,h,l,d\)"):
        positions.rotary(torch.randn(1, 3, 4), torch.arange(3))
    with pytest.raises(BadValue, match="positions"):
        positions.rotary(torch.randn(2, 1, 3, 4), torch.arange(4))
    with pytest.raises(BadValue, match="positions"):
        positions.rotary(torch.randn(2, 1, 3, 4), torch.zeros(3, 3))
    with pytest.raises(BadType, match="positions"):
        positions.rotary(torch.randn(2, 1, 3, 4), [0, 1, 2])
    with pytest.raises(BadValue, match="base"):
        positions.rotary(torch.randn(2, 1, 3, 4), torch.arange(3), base=0)


def test_positional_encodings_are_built_by_name():
    assert positions.names() == ENCODINGS
    for name in ENCODINGS:
        assert positions.build(name, dim=5, max_length=7)(torch.zeros(2, 3, 5)).shape == (2, 3, 5)
    for name in ("learned", "half-wave"):
        with pytest.raises(BadValue, match="max_length"):
            positions.build(name, dim=5)
    with pytest.raises(BadValue, match="Did you mean 'half-wave'"):
        positions.build("half-waves", dim=5)


@pytest.mark.parametrize("name", ENCODINGS)
def test_rows_of_the_table_are_added_from_the_offset_on(name):
    module, x = positions.build(name, dim=5, max_length=13), torch.randn(2, 4, 5)
    tables = {
        "sinusoidal": lambda: positions.sinusoidal(13, 5),
        "sinusoidal-split": lambda: positions.sinusoidal(13, 5)[:, [0, 2, 4, 1, 3]],
        "learned": lambda: module.table,
        "half-wave": lambda: positions.half_wave(13, 5),
        "none": lambda: torch.zeros(13, 5),
    }
    table = tables[name]()
    assert torch.allclose(module(x), x + table[:4])
    for offset in (3, torch.tensor(3), torch.tensor([3])):
        assert torch.allclose(module(x, offset), x + table[3:7])
    own = module(x, torch.tensor([2, 9]))
    assert torch.allclose(own, x + torch.stack([table[2:6], table[9:13]]))
    steps = torch.cat([module(x[:, t : t + 1], t) for t in range(4)], 1)
    assert torch.allclose(steps, module(x))
    assert module(x.bfloat16()).dtype == torch.bfloat16
    assert module(x[:, :0]).shape == (2, 0, 5)
    for copied in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(copied(x, 1), module(x, 1))


@pytest.mark.parametrize("name", ["learned", "half-wave"])
def test_positions_beyond_the_table_are_refused(name):
    module, x = positions.build(name, dim=5, max_length=7), torch.zeros(2, 4, 5)
    module(x, 3)
    for offset in (4, torch.tensor(4), torch.tensor([0, 4])):
        with pytest.raises(BadValue, match="max_length=7"):
            module(x, offset)


def test_sinusoidal_has_no_maximum_length():
    x = torch.zeros(1, 2, 6)
    found = positions.build("sinusoidal", dim=6)(x, 1_000_000)
    expected = [math.sin(1_000_001 / 10000 ** (2 / 6)), math.cos(1_000_001 / 10000 ** (2 / 6))]
    assert torch.allclose(found[0, 1, 2:4], torch.tensor(expected), atol=1e-6)
    assert not list(positions.build("sinusoidal", dim=6).parameters())


def test_the_gains_of_half_wave_scale_its_columns_and_learn():
    module = positions.HalfWave(dim=4, max_length=6)
    assert torch.equal(module.gains, torch.ones(4))
    with torch.no_grad():
        module.gains.copy_(torch.tensor([1.0, 2.0, 0.0, -1.0]))
    found = module(torch.zeros(1, 6, 4))
    assert torch.allclose(found[0], positions.half_wave(6, 4) * module.gains)
    found.sum().backward()
    assert torch.allclose(module.gains.grad, positions.half_wave(6, 4).sum(0), atol=1e-6)


def test_errors_name_the_argument():
    module = positions.build("sinusoidal", dim=5)
    with pytest.raises(BadValue, match="x: expected"):
        module(torch.zeros(2, 3, 4))
    with pytest.raises(BadValue, match="offset"):
        module(torch.zeros(2, 3, 5), -1)
    with pytest.raises(BadType, match="offset"):
        module(torch.zeros(2, 3, 5), torch.tensor([0.5, 1.0]))
    with pytest.raises(BadValue, match="offset"):
        module(torch.zeros(2, 3, 5), torch.tensor([0, 1, 2]))


@pytest.mark.parametrize("name", ENCODINGS)
def test_modules_compile_as_one_graph(name):
    module, x = positions.build(name, dim=5, max_length=13), torch.randn(2, 4, 5)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x, 2), module(x, 2))
    assert torch.allclose(compiled(x, torch.tensor([2, 5])), module(x, torch.tensor([2, 5])))
