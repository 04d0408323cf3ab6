"""One long sequence over several ranks (context parallelism): exact attention over positions that other ranks hold.

    >>> import torch
    >>> from regard import masks, parallel
    >>> sequence = parallel.ShardedSequence(10)
    >>> q, k, v = torch.randn(3, 1, 2, 10, 4).unbind(0)
    >>> mine = [sequence.shard(whole, 2) for whole in (q, k, v)]
    >>> parallel.attend(*mine, sequence, mask=masks.causal()).shape
    torch.Size([1, 2, 10, 4])

Started by torchrun, the same lines give each rank its own positions. `docs/scaling.md` says what it costs.
"""

from typing import TYPE_CHECKING

from regard.registry import imported_when_used

if TYPE_CHECKING:
    from regard.parallel.attention import attend
    from regard.parallel.exchange import ProcessLost, Traffic, count_traffic
    from regard.parallel.layout import Layout
    from regard.parallel.sequence import ShardedSequence

__all__ = ["Layout", "ProcessLost", "ShardedSequence", "Traffic", "attend", "count_traffic"]

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = imported_when_used(globals())
