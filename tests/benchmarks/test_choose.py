"""The table that `auto` reads: who is in it, what a row says, what measuring again replaces."""

import json

import pytest
import torch

from regard.benchmarks import choose
from regard.benchmarks.case import Setting
from regard.benchmarks.choose import Cell
from regard.errors import BadValue

QUICK = Setting(device="cpu", quick=True)


def test_the_grid_has_every_cell_once():
    cells = list(choose.grid(["full", "window"], [64, 32], [8], ["float32", "bfloat16"]))
    assert len(cells) == len(set(cells)) == 2 * 2 * 2 * 2
    assert cells[0] == Cell("float32", 8, "full", 32, False)


@pytest.mark.parametrize("grad", [False, True])
def test_whoever_runs_is_timed_and_nobody_else(grad):
    found = choose.measured(Cell("float32", 8, "window", 37, grad), QUICK, tokens=74, heads=2)
    assert "tiled" in found and not any(name.startswith("sdpa") for name in found)
    found = choose.measured(Cell("float32", 16, "causal", 37, grad), QUICK, tokens=74, heads=2)
    assert {"tiled", "sdpa-flash"} <= set(found) and "sdpa-cudnn" not in found
    assert all(time > 0 for time in found.values())


def test_whoever_is_wrong_has_no_entry(monkeypatch):
    real = choose.regard.attend

    def spoilt(*tensors, impl="auto", **options):
        found = real(*tensors, impl=impl, **options)
        return found * 1.1 if impl == "sdpa" else found

    monkeypatch.setattr(choose.regard, "attend", spoilt)
    assert set(choose.measured(Cell("float32", 16, "full", 37, False), QUICK, tokens=37, heads=1)) == {
        "tiled"
    }


def test_measuring_again_replaces_its_own_rows_only():
    old = [Cell("float32", 8, "full", n, False).row("h200", {"tiled": 1.0}) for n in (1024, 256)]
    other = Cell("float32", 8, "full", 256, False).row("b200", {"tiled": 3.0})
    new = Cell("float32", 8, "full", 256, False).row("h200", {"tiled": 2.0})
    rows = choose.merged([*old, other], [new])
    assert [(row["device"], row["n"], row["ms"]["tiled"]) for row in rows] == [
        ("b200", 256, 3.0), ("h200", 256, 2.0), ("h200", 1024, 1.0),
    ]  # fmt: skip


def test_the_program_writes_a_table_that_can_be_read_line_by_line(tmp_path):
    path = tmp_path / "measured.json"
    arguments = [
        "--out",
        str(path),
        "--only",
        "full,softcap",
        "--lengths",
        "29",
        "--widths",
        "8",
        "--dtypes",
        "float32",
    ]
    assert choose.main([*arguments, "--quick", "--tokens", "29"]) == 0
    rows = choose.read(path)
    assert len(rows) == 4 and len(path.read_text().splitlines()) == 6
    assert all(set(row) == {"device", "dtype", "d", "mask", "n", "grad", "ms"} for row in rows)
    assert rows[0]["device"] == choose.device_name() and json.loads(path.read_text()) == rows
    with pytest.raises(BadValue, match="--only"):
        choose.main(["--only", "windows"])


def test_chips_are_named_in_short(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    assert choose.device_name() == "h200"
