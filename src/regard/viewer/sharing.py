"""One question about a model at a time.

Some weights are only told by running a part of the model once more, with its switches set for a moment. A server has
several threads, so every question about a site waits for its turn; each is short, since long work asks row by row.
"""

from __future__ import annotations

import threading
from typing import Any

_TURN = threading.RLock()  # one for all: what is set for a moment may be a function of torch itself


class SharedSite:
    """A site that several threads may ask; everything else about it is as it was."""

    def __init__(self, site: Any) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def weights(self, *args: Any, **kwargs: Any) -> Any:
        """As the site's own."""
        with _TURN:
            return self._site.weights(*args, **kwargs)

    def columns_of(self, *args: Any, **kwargs: Any) -> Any:
        """As the site's own."""
        with _TURN:
            return self._site.columns_of(*args, **kwargs)

    def summary(self, *args: Any, **kwargs: Any) -> Any:
        """As the site's own."""
        with _TURN:
            return self._site.summary(*args, **kwargs)

    def pooled(self, *args: Any, **kwargs: Any) -> Any:
        """As the site's own."""
        with _TURN:
            return self._site.pooled(*args, **kwargs)


class SharedSeen:
    """A `Seen` whose sites several threads may ask. Sites of which nothing can be told are left out."""

    def __init__(self, seen: Any) -> None:
        self._seen = seen
        self._names = [name for name in seen.names() if seen[name].calls and seen[name].shape(-1)[1]]

    def names(self) -> list[str]:
        """The sites in their order."""
        return list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> SharedSite:
        return SharedSite(self._seen[name])
