"""Triton 3.4 to 3.7 may compute `dot(trans(f(dot(a, b))), c)` wrongly on Hopper: no kernel with it escapes the guard.

Wrong were blocks `dot(a, b)` of 64 or 128 rows by 16 or 32 columns (`gpu.may_transpose_wrongly`). A kernel is safe if
its blocks have fewer rows, if what it transposes was loaded, or if its refusal asks the guard.
"""

import ast
from pathlib import Path

import pytest

import regard
import regard_fast
from regard.implementations import gpu
from regard.implementations.triton.launch.block_sizes import padded
from regard_fast.fused_memory import refusal
from regard_fast.fused_memory import static as static_memory
from regard_fast.fused_rows import short_attention

SOURCES = [Path(package.__file__).parent for package in (regard, regard_fast)]
FEWER_ROWS = {"write_backward": refusal.MOST_SLOTS, "read_backward": refusal.LONGEST}  # the most rows of a block
GUARDED = {"short_backward": short_attention, "static_backward": static_memory}
LOADED = {"vector_gradients", "_weight_tile", "of_values"}  # `of_values` loads scores that another kernel stored


def named(call, name):
    return isinstance(call, ast.Call) and ast.unparse(call.func) == name


def transposing_kernels():
    """The kernels in which the first factor of a product is transposed, and where they are."""
    found = {}
    for path in sorted(path for source in SOURCES for path in source.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(
                named(call, "tl.dot") and named(call.args[0], "tl.trans") for call in ast.walk(function)
            ):
                assert function.name not in found, "a second kernel of this name"
                found[function.name] = path
    return found


def test_each_kernel_that_transposes_a_factor_is_known():
    assert set(transposing_kernels()) == {*FEWER_ROWS, *GUARDED, *LOADED}


@pytest.mark.parametrize("kernel", sorted(LOADED))
def test_what_these_transpose_is_no_product(kernel):
    tree = ast.parse(transposing_kernels()[kernel].read_text(encoding="utf-8"))
    function = next(one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == kernel)
    products = [call for call in ast.walk(function) if named(call, "tl.dot")]
    assert all(named(call.args[0], "tl.trans") for call in products), "no other product, of which it could be one"


@pytest.mark.parametrize("kernel", FEWER_ROWS)
def test_blocks_of_fewer_rows_are_no_case_of_the_fault(kernel, monkeypatch):
    monkeypatch.setattr(gpu, "_has_faulty_compiler", lambda: True)
    assert gpu.may_transpose_wrongly(64, 16) and gpu.may_transpose_wrongly(128, 32)
    for rows in range(1, FEWER_ROWS[kernel] + 1):
        assert not any(gpu.may_transpose_wrongly(padded(rows), columns) for columns in (16, 32, 64, 128))


@pytest.mark.parametrize("kernel", GUARDED)
def test_the_refusals_of_the_others_ask_the_guard(kernel, monkeypatch):
    module, asked = GUARDED[kernel], []
    for guarded in GUARDED.values():
        monkeypatch.setattr(guarded, "may_transpose_wrongly", lambda *sizes: False)
    monkeypatch.setattr(module, "may_transpose_wrongly", lambda *sizes: asked.append(sizes) or True)
    monkeypatch.setattr(module, "_is_wrong", lambda *sizes: True)
    if module is short_attention:
        why = short_attention.PlainAttention(False, 0.3).refusal(61, 29, 32)
    else:
        why = static_memory.refusal(regard.nn.build("static-memory", dim=64, num_heads=2, slots=29), 2, 61)
    assert asked == [(64, 32)] and "wrongly on this GPU" in why
