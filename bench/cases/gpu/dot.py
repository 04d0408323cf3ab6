"""Plain scaled dot products, full and causal: calling us must not be slower than torch's best kernel."""

from __future__ import annotations

from bench.cases.gpu.compare import register
from bench.cases.gpu.peers import BACKENDS
from bench.cases.gpu.work import LONG_128, SHORT_64, SHORT_128, Work
from regard import masks

AGAINST = tuple(BACKENDS)
FULL = Work("dot-full", "dot, full", causal=False, against=AGAINST)
CAUSAL = Work("dot-causal", "dot, causal", lambda size, device: {"mask": masks.causal()}, causal=True, against=AGAINST)

for _work in (FULL, CAUSAL):
    for _size in (SHORT_128, SHORT_64, LONG_128):
        register(_work, _size, bar=1.02, faster=False)
