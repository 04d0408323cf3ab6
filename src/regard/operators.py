"""Operators that an exported program calls, and the pieces of scans that it names; `import regard` registers them."""

from regard.implementations.tiled import op as tiled
from regard.nn.ntm import op as ntm
from regard.nn.parts import global_query, linear_pieces, scan

__all__ = ["global_query", "linear_pieces", "ntm", "scan", "tiled"]
