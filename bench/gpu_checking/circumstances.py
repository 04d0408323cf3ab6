"""Circumstances in which kernels must compute the same: streams, threads, graphs, used memory, layouts and more."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import regard
from bench.cases.gpu.capture import captured
from bench.gpu_checking.formula import BOUNDS, DEVICE, NAMES, error, options, rows, same, trained
from regard import biases, masks, scores


def on_another_stream() -> dict[str, Any]:
    """The current stream is used, not the default one."""
    given, asked = rows(1, 4, 1024, 64), options("window", 1024, 4)
    expected, stream = trained(*given, **asked), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = [trained(*given, **asked) for _ in range(5)]
    stream.synchronize()
    return {"ok": all(same(one, expected) for one in found)}


def in_threads() -> dict[str, Any]:
    """Six threads, each with a stream of its own."""
    asked = options("window", 1024, 4)
    work = [rows(1, 4, 1024, 64, seed=seed) for seed in range(6)]
    expected, wrong = [trained(*given, **asked) for given in work], []
    torch.cuda.synchronize()

    def run(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                if not same(trained(*work[index], **asked), expected[index]):
                    wrong.append(index)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return {"ok": not wrong and not any(thread.is_alive() for thread in threads), "wrong": wrong}


def in_a_graph() -> dict[str, Any]:
    """A captured call reads what its tensors hold when it is replayed."""
    found = {}
    for name in ("window", "global", "documents"):
        given, other = (rows(1, 4, 1024, 64, seed=seed) for seed in (0, 11))
        found[name] = _replayed(given, other, options(name, 1024, 4))
    return {"ok": all(found.values()), "by_mask": found}


def additive_in_a_graph() -> dict[str, Any]:
    """Additive scores of several strips, and of one whose scores are kept, captured with their backward pass."""
    found = {}
    for name, shape in (("several strips", (1, 1, 4096, 64)), ("kept scores", (16, 1, 256, 256))):
        given, other = (rows(*shape, dtype=torch.float32, seed=seed) for seed in (0, 11))
        score = scores.additive(torch.linspace(-1, 1, shape[3], device=DEVICE))
        found[name] = _replayed(given, other, {"score": score})
    return {"ok": all(found.values()), "by_case": found}


def _replayed(given: Sequence[Tensor], other: Sequence[Tensor], asked: dict[str, Any]) -> bool:
    """Whether a graph captured on `given` computes the same on `other` as a call does."""
    graph = captured(partial(trained, *given, **asked))
    expected = trained(*other, **asked)
    with torch.no_grad():
        for mine, theirs in zip(given, other, strict=True):
            mine.copy_(theirs)
    graph.replay()
    return same(graph.result, expected)


def with_kept_scores() -> dict[str, Any]:
    """Additive scores that are smaller than the inputs: against the reference, twice through one graph."""
    q, k, v, grad = rows(3, 2, 127, 211, dtype=torch.float32)
    weight = torch.linspace(-1, 1, 211, device=DEVICE).requires_grad_()
    output = regard.attend(q, k, v, score=scores.additive(weight), mask=masks.causal(), impl="triton")
    first, second = (torch.autograd.grad(output, (q, k, v, weight), grad, retain_graph=True) for _ in range(2))
    exact = [part.detach().double().requires_grad_() for part in (q, k, v, weight)]
    truth = regard.attend(*exact[:3], score=scores.additive(exact[3]), mask=masks.causal(), impl="reference")
    wanted = [truth, *torch.autograd.grad(truth, exact, grad.double())]
    pairs = zip([output.detach(), *first], wanted, strict=True)
    errors = [float((a.double() - b.detach()).norm() / b.detach().norm()) for a, b in pairs]
    return {"ok": max(errors) < 1e-4 and same(list(first), list(second)), "errors": errors}


def in_used_memory() -> dict[str, Any]:
    """Tensors of other contents and shapes come to lie where others lay before."""
    worst, addresses, asked = 0.0, set(), options("window", 777, 4)
    for turn in range(12):
        given = rows(1, 4, 777 if turn % 3 else 1030, 64, seed=turn)
        addresses.add(given[0].data_ptr())
        worst = max(worst, error("window", trained(*given, **asked), given, turn % 4))
        del given
    return {"ok": worst < BOUNDS[torch.bfloat16], "error": worst, "addresses": len(addresses)}


def with_changing_masks() -> dict[str, Any]:
    """Masks of one form with other numbers, and masks with other tensors."""
    given, wrong = rows(2, 4, 300, 64), []
    for turn in range(8):
        ids = (torch.arange(300, device=DEVICE) // (20 + 9 * turn)).expand(2, -1)
        for mask in (
            masks.documents(ids) & masks.causal(),
            masks.window(7 + turn, turn),
            masks.causal(offset=turn - 3),
            masks.lengths(torch.tensor([300 - turn, 31 + turn], device=DEVICE)),
        ):
            found = trained(*given, mask=mask)[0].float()
            truth = regard.attend(*[part.float() for part in given[:3]], mask=mask, impl="reference")
            if not torch.allclose(found, truth, atol=3e-2, rtol=3e-2):
                wrong.append((turn, repr(mask)[:60]))
    return {"ok": not wrong, "wrong": wrong}


def in_odd_layouts() -> dict[str, Any]:
    """Heads inside, unaligned rows, shared heads, more keys than queries: each against the reference."""
    found = {}
    plain = rows(2, 300, 4, 64)
    swapped = [part.detach().transpose(1, 2).requires_grad_() for part in plain[:3]]
    shifted = [
        torch.randn(2 * 4 * 300 * 64 + 1, device=DEVICE).bfloat16()[1:].view(2, 4, 300, 64).requires_grad_()
        for _ in range(3)
    ]
    few, many = rows(2, 4, 131, 64), rows(2, 2, 300, 64)
    cases = {"heads inside": swapped, "unaligned": shifted, "shared heads": [few[0], many[1], many[2]]}
    for name, given in cases.items():
        grad = torch.randn(given[0].shape, device=DEVICE).bfloat16()
        mask = masks.window(40, 3)
        ours = trained(*given, grad, mask=mask)
        wide = [part.detach().float().requires_grad_() for part in given]
        output = regard.attend(*wide, mask=mask, impl="reference")
        truth = [output, *torch.autograd.grad(output, wide, grad.float())]
        found[name] = max(float((a.float() - b).norm() / b.norm()) for a, b in zip(ours, truth, strict=True))
    return {"ok": max(found.values()) < BOUNDS[torch.bfloat16], "errors": found}


def deterministically() -> dict[str, Any]:
    """Equal bits in deterministic mode."""
    given, found = rows(2, 4, 2048, 64), {}
    torch.use_deterministic_algorithms(True)
    try:
        for name in NAMES:
            asked = options(name, 2048, 4)
            first = trained(*given, **asked)
            found[name] = all(same(trained(*given, **asked), first) for _ in range(4))
    finally:
        torch.use_deterministic_algorithms(False)
    return {"ok": all(found.values()), "by_mask": found}


def compiled() -> dict[str, Any]:
    """The operator inside a compiled function gives the same bits."""
    given, mask = rows(1, 4, 512, 64), masks.window(100, 0)
    call = torch.compile(
        lambda q, k, v: regard.attend(q, k, v, mask=mask, impl="triton"), backend="aot_eager", fullgraph=True
    )
    output = call(*given[:3])
    found = [output.detach(), *torch.autograd.grad(output, given[:3], given[3])]
    return {"ok": same(found, trained(*given, mask=mask))}


def with_hidden_nan() -> dict[str, Any]:
    """What is hidden must not reach output or gradients, NaN included."""
    q, k, v, grad = rows(2, 4, 300, 64)
    ids = (torch.arange(300, device=DEVICE) // 70).expand(2, -1).clone()
    ids[:, 250:] = -1
    real = torch.tensor([300, 130], device=DEVICE)
    found = {}
    beyond = torch.arange(300, device=DEVICE) >= real[:, None]
    cases = {
        "documents": (masks.causal() & masks.documents(ids), ids < 0),
        "lengths": (masks.lengths(real, real), beyond),
    }
    for name, (mask, hidden) in cases.items():
        spoiled = [
            part.detach().masked_fill(hidden[:, None, :, None], torch.nan).requires_grad_() for part in (q, k, v)
        ]
        clean = [part.detach().masked_fill(hidden[:, None, :, None], 0).requires_grad_() for part in (q, k, v)]
        bad = grad.masked_fill(hidden[:, None, :, None], 0)
        found[name] = same(trained(*spoiled, bad, mask=mask), trained(*clean, bad, mask=mask))
    return {"ok": all(found.values()), "by_mask": found}


def in_pieces() -> dict[str, Any]:
    """Global tokens over a long sequence of few heads: the walks of some blocks are cut, and joined in fixed order."""
    found = {}
    for d in (64, 128):
        given, asked = rows(1, 2, 8192, d), options("global", 8192, 2)
        first = trained(*given, **asked)
        found[d] = (error("global", first, given, 1), all(same(trained(*given, **asked), first) for _ in range(3)))
    ok = all(off < BOUNDS[torch.bfloat16] and equal for off, equal in found.values())
    return {"ok": ok, "by_width": found}


def with_other_kernels() -> dict[str, Any]:
    """Additive scores, summaries, chosen weights and a bias with a table: each twice, against the reference."""
    table, weight = torch.randn(4, 9, device=DEVICE, requires_grad=True), torch.randn(32, device=DEVICE)
    found = {}
    for n in (130, 257, 130):
        q, k, v = (torch.randn(2, 4, n, 32, device=DEVICE, requires_grad=True) for _ in range(3))
        grad = torch.randn(2, 4, n, 32, device=DEVICE)
        cases = {
            "relative bias": {"bias": biases.relative(table), "mask": masks.causal()},
            "additive": {"score": scores.additive(weight), "mask": masks.window(20)},
        }
        for name, asked in cases.items():
            ours, exact = (
                _gradients(regard.attend(*part, impl=impl, **wide), part, grad.to(part[0].dtype))
                for impl, part, wide in (
                    ("triton", (q, k, v), asked),
                    ("reference", tuple(x.detach().requires_grad_() for x in (q, k, v)), asked),
                )
            )
            off = max(float((a - b).norm() / b.norm()) for a, b in zip(ours, exact, strict=True))
            found[f"{name} {n}"] = off
        summary = regard.summarize(q.detach(), k.detach(), mask=masks.causal())
        weights = regard.weights(q.detach(), k.detach(), mask=masks.causal())
        found[f"summary {n}"] = float((summary.top_weights - weights.topk(8, -1).values).abs().max())
    return {"ok": max(found.values()) < 1e-4, "errors": found}


def _gradients(output: Tensor, inputs: tuple[Tensor, ...], grad: Tensor) -> list[Tensor]:
    return [output.detach(), *torch.autograd.grad(output, inputs, grad)]


def while_decoding() -> dict[str, Any]:
    """One query over caches of several lengths."""
    worst = 0.0
    for keys in (1, 77, 4096, 4097, 5000):
        q = torch.randn(2, 8, 1, 128, device=DEVICE).bfloat16()
        k, v = (torch.randn(2, 2, keys, 128, device=DEVICE).bfloat16() for _ in range(2))
        for _ in range(2):
            found = regard.attend(q, k, v, mask=masks.causal(), impl="triton")
        truth = regard.attend(q.double(), k.double(), v.double(), impl="reference")
        worst = max(worst, float((found.double() - truth).norm() / truth.norm()))
    return {"ok": worst < BOUNDS[torch.bfloat16], "error": worst}


def on_other_devices() -> dict[str, Any]:
    """Launches on a GPU that is not the current one."""
    count, wrong = torch.cuda.device_count(), []
    for index in range(1, count):
        given = [part.detach().to(f"cuda:{index}") for part in rows(1, 4, 300, 64)]
        for part in given[:3]:
            part.requires_grad_()
        for _ in range(2):
            if not torch.isfinite(trained(*given, mask=masks.window(40, 3))[1]).all():
                wrong.append(index)
    return {"ok": not wrong, "devices": count}


ALL = (
    on_another_stream,
    in_threads,
    in_a_graph,
    in_used_memory,
    with_changing_masks,
    in_odd_layouts,
    deterministically,
    compiled,
    with_hidden_nan,
    in_pieces,
    additive_in_a_graph,
    with_kept_scores,
    with_other_kernels,
    while_decoding,
    on_other_devices,
)
