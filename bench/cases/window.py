"""A causal sliding window over a long sequence: the gain from knowing a mask's structure.

SDPA can only be told such a mask as a dense n×n tensor, and then does all n² work. With `is_causal` it does half
of that, for a different (larger) set of pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

import regard
from bench.cases.memory import extra_memory
from regard import masks
from regard_workbench.bench.case import Measurement, Setting, case
from regard_workbench.bench.timing import speedup

B, H, N, D = 1, 8, 16384, 64
VISIBLE = 256  # the query itself and 255 keys before it
SHAPE = f"b{B} h{H} n{N} d{D}"
WORK = f"causal window of {VISIBLE} keys, {SHAPE}, forward"


def _inputs(device: str, length: int = N) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, length, D, generator=generator).to(device) for _ in ("query", "key", "value")]


def _mask() -> masks.Mask:
    return masks.window(VISIBLE - 1, 0)


def _versus(setting: Setting, **peer_options: object) -> Measurement:
    query, key, value = _inputs(setting.device)
    mask = _mask()
    return speedup(
        lambda: regard.attend(query, key, value, mask=mask),
        lambda: F.scaled_dot_product_attention(query, key, value, **peer_options),  # type: ignore[arg-type]
        setting,
        regard.explain(query, key, value, mask=mask).impl,
    )


@case("window-vs-dense", work=WORK, peer="SDPA, dense bool mask", unit="× faster", at_least=20)
def versus_dense(setting: Setting) -> Measurement:
    """The same pairs, which SDPA gets as an n×n tensor built outside the clock."""
    position = torch.arange(N, device=setting.device)
    distance = position[:, None] - position[None, :]
    return _versus(setting, attn_mask=(distance >= 0) & (distance < VISIBLE))


@case("window-vs-causal", work=WORK, peer="SDPA is_causal (all earlier keys)", unit="× faster", at_least=8)
def versus_causal(setting: Setting) -> Measurement:
    """The fastest thing SDPA can do that is causal; it attends to more keys than were asked for."""
    return _versus(setting, is_causal=True)


def windowed(device: str, small: bool) -> Callable[[], object]:
    """The call whose memory is measured; the output alone is 32 MiB."""
    query, key, value = _inputs(device, 512 if small else N)
    mask = _mask()
    return lambda: regard.attend(query, key, value, mask=mask)


@case("window-memory", work=WORK, peer="(dense mask alone: 256 MiB)", unit="MiB extra", at_most=128)
def memory(setting: Setting) -> Measurement:
    """Peak memory beyond the inputs, output included."""
    query, key, value = _inputs(setting.device, 512)
    return extra_memory(windowed, setting, regard.explain(query, key, value, mask=_mask()).impl)
