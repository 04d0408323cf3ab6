"""A small deterministic set of cases in which every two entries of different kinds meet at least once."""

import itertools

import torch

from tests.contracts import entries
from tests.contracts.entries import FEW_QUERIES, MANY_QUERIES, SELF
from tests.contracts.harness import EVERYTHING, Case

FACTORS = {
    "score": list(entries.SCORES),
    "mask": list(entries.MASKS),
    "bias": list(entries.BIASES),
    "normalize": [*entries.NORMALIZERS, *entries.CUSTOM_NORMALIZERS],
    "dtype": [torch.float32, torch.bfloat16, torch.float16, torch.float64],
    "sizes": [SELF, FEW_QUERIES, MANY_QUERIES],
    "sink": [False, True],
    "impl": list(EVERYTHING),
}


def allowed(row, factor, value):
    """A square mask needs as many queries as keys."""
    if factor == "sizes" and "mask" in row:
        return not entries.MASKS[row["mask"]].square or value == SELF
    if factor == "mask" and "sizes" in row:
        return not entries.MASKS[value].square or row["sizes"] == SELF
    return True


def covering(factors):
    """Rows {factor: value} such that each allowed pair of values stands in one of them; greedy."""
    names = list(factors)
    wanted = {
        ((a, x), (b, y))
        for a, b in itertools.combinations(names, 2)
        for x in factors[a]
        for y in factors[b]
        if allowed({a: x}, b, y)
    }
    used = dict.fromkeys(((name, value) for name in names for value in factors[name]), 0)

    def gain(row, name, value):
        pairs = (tuple(sorted([(n, v), (name, value)], key=lambda p: names.index(p[0]))) for n, v in row.items())
        return sum(pair in wanted for pair in pairs)

    rows = []
    starts = list(itertools.product(factors[names[0]], factors[names[1]]))
    while starts or wanted:
        row = dict(zip(names[:2], starts.pop(0), strict=True)) if starts else dict(min(wanted, key=str))
        for name in names:
            if name not in row:
                options = [v for v in factors[name] if allowed(row, name, v)]
                row[name] = max(options, key=lambda v: (gain(row, name, v), -used[name, v]))
        for name, value in row.items():
            used[name, value] += 1
        wanted -= set(itertools.combinations([(n, row[n]) for n in names], 2))
        rows.append(row)
    return rows


ROWS = covering(FACTORS)
CASES = [(Case(**{name: value for name, value in row.items() if name != "impl"}), row["impl"]) for row in ROWS]
