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

from typing import TYPE_CHECKING, Any

from regard.parallel.exchange import ProcessLost, Traffic, count_traffic
from regard.parallel.layout import Layout
from regard.parallel.sequence import ShardedSequence

if TYPE_CHECKING:
    from regard.parallel.attention import attend

__all__ = ["Layout", "ProcessLost", "ShardedSequence", "Traffic", "attend", "count_traffic"]


def __getattr__(name: str) -> Any:
    """Load `attend` when it is asked for: to be left out of torch's compiler, it loads it, which takes a second.

    A training asks only whether a process was lost.
    """
    if name == "attend":
        from regard.parallel.attention import attend

        globals()[name] = attend
        return attend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
