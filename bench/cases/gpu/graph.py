"""Graph attention on a large graph on a GPU, beside PyTorch Geometric: the cases of the CPU, judged there, too."""

from __future__ import annotations

from regard_workbench.bench.case import CASES, case

for _name in ("train", "v2-train", "memory"):  # registered before, see `bench.cases.FAMILIES`
    _same = CASES[f"graph-{_name}"]
    case(
        f"graph-gpu-{_name}",
        work=_same.work,
        peer=_same.peer,
        unit=_same.unit,
        at_least=None if _same.at_most else _same.bar,
        at_most=_same.bar if _same.at_most else None,
        device="cuda",
    )(_same.measure)
