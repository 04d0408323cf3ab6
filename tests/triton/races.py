"""Accesses whose order a GPU leaves open are errors in the interpreter, which runs everything in one order.

On a GPU the programs of a launch run at the same time, and so do the threads of a program. A thread may read what
another has stored, or store what another has yet to read, only behind `tl.debug_barrier()`. The interpreter runs one
program after the other, and each of them like a single thread, so a kernel that lacks a barrier is right there.

Here each number in memory has the times at which a launch has read and stored it; a time is the number of an access.
Two accesses to a number, one of them a store, are a race if no barrier is between them or if they belong to different
programs. Three things are none:

- A store that changes nothing, as when several programs store the same result.
- A tile that is loaded and stored back through equal pointers: each thread stores what it has loaded. This holds for
  tiles of at least as many numbers as there are threads; of a smaller one several threads load each number.
- Atomic operations.
"""

import numpy as np

THREADS = 128  # of four warps, the fewest that our kernels with more than one number have


class Race(AssertionError):
    """Two accesses of a launch depend on an order that a GPU does not keep."""


class Times:
    """When the numbers in one piece of memory were stored, read last, and read first; 0: not in this launch."""

    def __init__(self, count):
        self.stored, self.read, self.first_read = (np.zeros(count, np.int64) for _ in range(3))


class Races:
    """What the programs of the launch that is running have touched."""

    def __init__(self):
        self.enter()

    def enter(self):
        """Begin a launch."""
        self.clock, self.begun, self.waited, self.program = 0, 0, 0, None
        self.pieces, self.tiles = {}, {}

    def begin(self, program):
        """Note which program runs."""
        if program != self.program:
            self.program = program
            self.barrier()
            self.begun = self.waited

    def barrier(self):
        """Let the threads of the program wait for each other."""
        self.waited = self.clock + 1
        self.tiles.clear()

    def load(self, piece, at):
        """Note that numbers of a piece of memory are read, and say what is wrong with it."""
        self.clock += 1
        times = self._times(piece)
        stored = times.stored[at]
        first = times.first_read[at]
        times.first_read[at] = np.where(first == 0, self.clock, first)
        times.read[at] = self.clock
        self.tiles[self.clock] = at
        if self._by_others(stored).any():
            return "loads what another program stores"
        return "loads, without a barrier, what it has stored" if (stored >= self.waited).any() else ""

    def store(self, piece, at, changes):
        """Note that numbers of a piece of memory are stored, and say what is wrong with it.

        `changes` tells for each number whether it gets another value.
        """
        self.clock += 1
        times = self._times(piece)
        stored, read, first = (held[at] for held in (times.stored, times.read, times.first_read))
        times.stored[at] = self.clock
        if not changes.any():
            return ""
        if (self._by_others(first) & changes).any():
            return "stores what another program loads"
        if (self._by_others(stored) & changes).any():
            return "stores what another program stores"
        if ((stored >= self.waited) & changes).any():
            return "stores to one number twice, without a barrier"
        open_reads = read[(read >= self.waited) & changes]
        if open_reads.size and not self._in_place(open_reads, at):
            return "stores, without a barrier, what it has loaded"
        return ""

    def _times(self, piece):
        found = self.pieces.get(piece)
        if found is None:
            found = self.pieces[piece] = Times(piece.count)
        return found

    def _by_others(self, times):
        return (times > 0) & (times < self.begun)

    def _in_place(self, reads, at):
        """Whether the numbers that are stored now were all read by one load through the same pointers."""
        last = reads[0]
        return at.size >= THREADS and bool((reads == last).all()) and np.array_equal(self.tiles[last], at)
