"""The table by which `auto` chooses on a GPU: every implementation that can run a request, timed over a small grid.

    python -m regard.benchmarks.choose                    # measures here, prints, and writes the checked-in table
    python -m regard.benchmarks.choose --out table.json   # writes elsewhere
    python -m regard.benchmarks.choose --only causal,window --lengths 1024,4096

A row is {"device", "dtype", "d", "mask", "n", "grad", "ms": {implementation: milliseconds}}. Rows of another device,
and of cells that are not measured this time, stay as they are. What does not run or gives wrong numbers has no entry.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard import biases, implementations, masks, scores
from regard.benchmarks.case import Setting
from regard.benchmarks.gpu import check
from regard.benchmarks.gpu.events import side_by_side
from regard.benchmarks.gpu.work import Size, gradient, inputs, timed_call
from regard.benchmarks.timing import Call
from regard.errors import BadValue

TABLE = Path(implementations.__file__).parent / "measured.json"
TOKENS, HEADS = 16384, 16  # the batch is as large as makes so many tokens
LENGTHS = (256, 1024, 4096, 16384)
WIDTHS = (64, 128)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BACKENDS = {"sdpa-cudnn": SDPBackend.CUDNN_ATTENTION, "sdpa-flash": SDPBackend.FLASH_ATTENTION,
            "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION}  # fmt: skip

# What `mask` says in a row, as options of `attend` for a number of heads and a length.
KINDS: dict[str, Callable[[int, int], dict[str, Any]]] = {
    "full": lambda heads, length: {},
    "causal": lambda heads, length: {"mask": masks.causal()},
    "window": lambda heads, length: {"mask": masks.window(min(511, length // 4), 0)},
    "bias": lambda heads, length: {"mask": masks.causal(), "bias": biases.alibi(heads)},
    "softcap": lambda heads, length: {"mask": masks.causal(), "score": scores.softcap(30.0)},
}


@dataclass(frozen=True)
class Cell:
    """One request of the grid."""

    dtype: str
    width: int
    mask: str
    length: int
    grad: bool

    def key(self, device: str) -> tuple[object, ...]:
        """What tells its row from all others."""
        return (device, self.dtype, self.width, self.mask, self.length, self.grad)

    def row(self, device: str, milliseconds: Mapping[str, float]) -> dict[str, Any]:
        """As it stands in the table."""
        return {"device": device, "dtype": self.dtype, "d": self.width, "mask": self.mask, "n": self.length,
                "grad": self.grad, "ms": dict(milliseconds)}  # fmt: skip


def grid(
    kinds: Sequence[str], lengths: Sequence[int], widths: Sequence[int], dtypes: Sequence[str]
) -> Iterator[Cell]:
    """Every cell, the quick ones first."""
    for length in sorted(lengths):
        for kind in kinds:
            for dtype in dtypes:
                for width in widths:
                    yield from (Cell(dtype, width, kind, length, grad) for grad in (False, True))


def contestants(cell: Cell, options: Mapping[str, Any]) -> dict[str, Callable[..., Tensor]]:
    """The implementations of regard that may be chosen; SDPA once for each of its backends."""

    def by_name(impl: str, *tensors: Tensor) -> Tensor:
        found = regard.attend(*tensors, impl=impl, **options)
        assert isinstance(found, Tensor)
        return found

    def backend(which: SDPBackend, *tensors: Tensor) -> Tensor:
        with sdpa_kernel(which):
            return by_name("sdpa", *tensors)

    found: dict[str, Callable[..., Tensor]] = {
        name: partial(backend, which) for name, which in BACKENDS.items() if set(options) <= {"mask"}
    }
    return {**found, "triton": partial(by_name, "triton"), "tiled": partial(by_name, "tiled")}


def measured(cell: Cell, setting: Setting, *, tokens: int = TOKENS, heads: int = HEADS) -> dict[str, float]:
    """Milliseconds of everyone who gives the right numbers."""
    dtype = DTYPES[cell.dtype]
    size = Size(max(1, tokens // cell.length), heads, cell.length, cell.width)
    tensors = inputs(size, setting.device, dtype, grad=cell.grad)
    upstream = gradient(size, setting.device, dtype) if cell.grad else None
    options = KINDS[cell.mask](heads, cell.length)
    wanted = _exact(tensors, options)
    calls: dict[str, Call] = {}
    for name, attend in contestants(cell, options).items():
        try:
            with torch.no_grad():
                far = check.distance(attend(*tensors)[-1:], wanted)
        except Exception:
            continue
        if far <= check.LIMITS[dtype]:
            calls[name] = timed_call(attend, tensors, upstream)
    if not calls:
        return {}
    times = side_by_side(calls, setting, must="")
    return {name: round(1e3 * times.median(name), 5) for name in times.seconds}


def _exact(tensors: Sequence[Tensor], options: Mapping[str, Any]) -> Tensor:
    """The last entry of the batch, in float32 and in strips: `tiled` is the one that was checked most elsewhere."""
    with torch.no_grad():
        found = regard.attend(*[tensor[-1:].float() for tensor in tensors], impl="tiled", **options)
    assert isinstance(found, Tensor)
    return found


def device_name() -> str:
    """The chip as rows name it: "NVIDIA H200" is "h200"."""
    whole = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return whole.lower().removeprefix("nvidia ").replace(" ", "-")


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a table; none where there is no file yet."""
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return rows


def merged(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Old rows with new ones in the place of those of the same cell, in a fixed order."""
    by_key = {tuple(value for name, value in row.items() if name != "ms"): dict(row) for row in [*old, *new]}
    return [by_key[key] for key in sorted(by_key, key=lambda key: (*map(str, key[:4]), key[4], key[5]))]


def write(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """One row a line, so that a change of one is seen as one."""
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        prog="python -m regard.benchmarks.choose", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=TABLE, help="where the table is kept")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds of masks, joined by commas")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--widths", default=",".join(map(str, WIDTHS)))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    given = parser.parse_args(arguments)
    kinds, dtypes = given.only.split(","), given.dtypes.split(",")
    for what, names, known in (("--only", kinds, KINDS), ("--dtypes", dtypes, DTYPES)):
        for name in names:
            if name not in known:
                raise BadValue(f"{what}: expected some of {', '.join(known)}, got {name!r}.")
    setting = Setting(device="cuda" if torch.cuda.is_available() else "cpu", quick=given.quick)
    name = device_name()
    rows = []
    for cell in grid(kinds, _numbers(given.lengths), _numbers(given.widths), dtypes):
        found = measured(cell, setting, tokens=given.tokens)
        rows.append(cell.row(name, found))
        best = min(found, key=lambda one: found[one], default="nobody")
        which = f"{cell.mask} n{cell.length} d{cell.width} {cell.dtype} {'train' if cell.grad else 'forward'}"
        print(f"{which}: {best} of {found}", file=sys.stderr, flush=True)
        write(merged(read(given.out), rows), given.out)  # each time: a lease may end
    return 0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    raise SystemExit(main())
