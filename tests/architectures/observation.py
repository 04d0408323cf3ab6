"""One architecture, observed: its calls against the oracle's, its bits, its weights."""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import regard
from tests.architectures.oracle import Call, Oracle, rows_to_compare

WRONG = 1e-3  # tolerance between read weights and the model's own, float32


@torch.no_grad()
def count(model: Any, given: dict[str, Any]) -> int:
    """Attention calls of a pass, by the oracle."""
    return len(_watched(model, given, keep_weights=False))


def _watched(model: Any, given: dict[str, Any], keep_weights: bool = True) -> list[Call]:
    with Oracle(model, keep_weights) as oracle:
        run(model, given)
    return oracle.calls


def run(model: Any, given: dict[str, Any], seed: int | None = 3, **more: Any) -> Any:
    """A forward pass with its random numbers fixed, unless the seed is None."""
    if seed is not None:
        torch.manual_seed(seed)
    positional = given.get("*", ())
    return model(*positional, **{name: value for name, value in given.items() if name != "*"}, **more)


@torch.no_grad()
def look(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Run a model plainly, under the oracle and observed; returns a record of plain data."""
    plain = _leaves(run(model, given))
    again = _leaves(run(model, given))
    calls = _watched(model, given)
    begun = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with regard.observe(model) as seen:
            observed = _leaves(run(model, given))
    seconds = time.perf_counter() - begun
    readings, unreadable = _readings(seen)
    deterministic = _same(plain, again)
    record: dict[str, Any] = {
        "oracle": len(calls),
        "oracle_calls": [_plain(call) for call in calls],
        "seen": sum(weights is not None for _, weights in readings),
        "sites": {name: _site(site) for name, site in seen.sites.items()},
        "unreadable": unreadable,
        "deterministic": deterministic,
        "same_bits": _same(plain, observed) if deterministic else None,
        "warnings": [
            str(one.message)[:2000] for one in caught if "regard" in one.filename or "regard" in str(one.message)
        ],
        "seconds": round(seconds, 3),
    }
    record["largest_difference"], record["compared"] = _difference(calls, readings)
    record["missed"] = _missed(calls, seen)
    record["returned"], record["returned_difference"] = _returned(model, given)
    record["status"] = status(record)
    return record


def status(record: dict[str, Any]) -> str:
    """The status of a record."""
    if record["same_bits"] is False:
        return "differs"
    if not record["oracle"]:
        return "no attention" if not record["seen"] else "more than the oracle"
    if not record["seen"]:
        return "nothing"
    apart = (record["largest_difference"], record.get("returned_difference"))
    wrong = any(one is not None and one > WRONG for one in apart)
    if record["seen"] < record["oracle"] or record["missed"] or record["unreadable"]:
        return "partial"
    return "wrong weights" if wrong else "full"


def _readings(seen: Any) -> tuple[list[tuple[str, Tensor | None]], list[str]]:
    """The weights of every call that was seen, in order; None and a reason where they cannot be read."""
    found: list[tuple[str, Tensor | None]] = []
    unreadable = []
    for name, site in seen.sites.items():
        for call in range(site.calls):
            try:
                rows = rows_to_compare(site.shape(call))
                found.append((name, site.weights(rows=rows, call=call)))
            except Exception as error:
                found.append((name, None))
                unreadable.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    return found, unreadable


def _difference(calls: list[Call], readings: list[tuple[str, Tensor | None]]) -> tuple[float | None, int]:
    """The largest difference between weights that were read and the oracle's, and how many pairs were compared."""
    pairs: list[tuple[Tensor, Tensor]] = []
    if len(calls) == len(readings):
        candidates = [(call, weights) for call, (_, weights) in zip(calls, readings, strict=True)]
    else:  # only where a module attends as often as it was seen to
        candidates = []
        for path in {call.path for call in calls}:
            of_path = [call for call in calls if call.path == path]
            read = [weights for name, weights in readings if _base(name) == path]
            if len(of_path) == len(read):
                candidates += list(zip(of_path, read, strict=True))
    for call, weights in candidates:
        expected = call.weights
        if weights is None or expected is None:
            continue
        if expected.shape[-1] == weights.shape[-1] + 1:  # a sink is no key
            expected = expected[..., :-1]
        if weights.numel() == expected.numel():
            pairs.append((_arranged(expected, weights), weights))
    return max((_apart(one, two) for one, two in pairs), default=None), len(pairs)


def _arranged(expected: Tensor, weights: Tensor) -> Tensor:
    """The oracle's weights in the shape of those that were read; (b,h,blocks,q,k) is read as (b·blocks,h,q,k)."""
    plain = expected.reshape(weights.shape)
    if expected.dim() != 5:
        return plain
    by_block = expected.transpose(1, 2).reshape(weights.shape)
    return min((plain, by_block), key=lambda one: _apart(one, weights))


def _apart(one: Tensor, two: Tensor) -> float:
    """The largest difference; a NaN in only one of both is infinitely far."""
    one, two = one.double(), two.double()
    apart = torch.where(one.isnan() & two.isnan(), 0.0, (one - two).abs()).nan_to_num(torch.inf)
    return float(apart.max()) if apart.numel() else 0.0


def _returned(model: Any, given: dict[str, Any]) -> tuple[int, float | None]:
    """How many maps the model returns itself, and their largest difference to those read in the same pass.

    Maps come in an order of the model's own, so each is compared with the nearest one of its shape. Some models hand
    out scores under that name, or maps put together from several calls: what is not a row of weights is left out.
    """
    try:
        with warnings.catch_warnings(), regard.observe(model) as seen:
            warnings.simplefilter("ignore")
            output = run(model, given, output_attentions=True)
    except Exception:  # it has no such option
        return 0, None
    maps = (
        [one for name in output for one in _leaves(output[name]) if name.endswith("attentions")]
        if _named(output)
        else []
    )
    readings = [weights for _, weights in _readings(seen)[0] if weights is not None]
    nearest = []
    for one in maps:
        if not torch.allclose(one.double().sum(-1), torch.ones((), dtype=torch.float64), atol=1e-3):
            continue
        same = [_apart(one, weights) for weights in readings if weights.shape == one.shape]
        nearest += [min(same)] if same else []
    return len(maps), max(nearest, default=None)


def _named(output: Any) -> bool:
    return hasattr(output, "keys") and hasattr(output, "to_tuple")


def _missed(calls: list[Call], seen: Any) -> dict[str, int]:
    """Modules with missing calls: the path, and how many calls were not seen.

    A softmax may stand in a part of the module that attends (an nn.Softmax), so a site answers for what is below it.
    """
    left: dict[str, int] = {}
    for name, site in seen.sites.items():
        left[_base(name)] = left.get(_base(name), 0) + site.calls
    missed: dict[str, int] = {}
    for call in calls:
        path = call.path
        while path and not left.get(path):
            path = path.rpartition(".")[0]
        inside = (
            next((one for one in left if left[one] and one.startswith(call.path + ".")), None) if call.path else None
        )
        place = path if left.get(path) else inside
        if place is not None and left.get(place):
            left[place] -= 1
        else:
            missed[call.path] = missed.get(call.path, 0) + 1
    # A model that is one module is named by its class.
    spare = sum(left.values())
    return {} if spare >= sum(missed.values()) else missed


def _base(name: str) -> str:
    return name.partition("#")[0]


def _plain(call: Call) -> dict[str, Any]:
    return {name: value for name, value in vars(call).items() if name != "weights"}


def _site(site: Any) -> dict[str, Any]:
    return {"kind": site.kind, "how": str(site.how), "calls": site.calls, "shape": list(site.shape())}


def _leaves(output: Any) -> list[Tensor]:
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    found = []
    for part in tree_leaves(output):
        if isinstance(part, Tensor):
            found.append(part.clone())
        elif hasattr(part, "to_tuple"):
            found += _leaves(part)
    return found


def _same(one: list[Tensor], two: list[Tensor]) -> bool:
    if len(one) != len(two):
        return False
    return all(
        a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in zip(one, two, strict=True)
    )
