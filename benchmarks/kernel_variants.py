"""Settings of the kernels beside each other on a GPU: python -m benchmarks.kernel_variants --out variants.jsonl

For each case, the most valuable first: other block sizes, warps, stages and limits of registers than those in
`block_sizes.HALF`, each checked against float64 (and for equal bits in a second run), then timed in turns with the
setting in place and with FlexAttention. The table shows milliseconds; a variant that is faster names the entry of
`block_sizes.HALF` to set. Then additive scores (how score tiles share a multiprocessor), global tokens (how long a walk
may be before it is cut) and one token of decoding, each with the host's microseconds and, where a CUDA graph can hold
the call, the kernels alone. Each result is one line of JSON, written at once.

Other processes compile the chosen cases first (`--warm` seconds); what they did not reach is compiled when timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

from benchmarks.variants.additive import run_additive
from benchmarks.variants.cases import CASES
from benchmarks.variants.compiling import compile_part, is_chosen, warm
from benchmarks.variants.cuts import run_cuts
from benchmarks.variants.decoding import run_decoding
from benchmarks.variants.report import Output
from benchmarks.variants.trying import run_case


def main() -> None:
    """Compile side by side, then check and time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="file to which results are appended, one line of JSON each")
    parser.add_argument("--seconds", type=float, default=150, help="after so many no further case is begun")
    parser.add_argument("--warm", type=float, default=55, help="seconds that other processes may compile; 0: none do")
    parser.add_argument("--processes", type=int, default=14, help="how many compile at a time")
    parser.add_argument("--only", default="", help="parts of the names of cases to try, joined by commas")
    parser.add_argument("--compile", nargs=2, type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.compile:
        compile_part(*given.compile, given.only)
        return
    output = Output(given.out, given.seconds)
    if given.warm:
        stopped = warm(given.processes, given.warm, given.only)
        output.write(f"compiled by {given.processes} processes, {stopped} stopped", case="warm", stopped=stopped)
    jobs: list[tuple[str, Callable[[], None]]] = [(case.name, partial(run_case, case, output)) for case in CASES]
    others = [
        ("decode", partial(run_decoding, output)),
        ("additive-4k", partial(run_additive, output)),
        ("cuts", partial(run_cuts, output)),
        ("additive-many", partial(run_additive, output, (64, 1, 256, 256))),
    ]
    for name, run in [*jobs[:2], *others[:2], *jobs[2:5], others[2], *jobs[5:], others[3]]:
        if is_chosen(name, given.only):
            output.attempt(name, run)


if __name__ == "__main__":
    main()
