"""A process that is killed while others wait for it ends them, too, with a message instead of a hang."""

import os
import signal

import pytest
import torch

from regard import masks, parallel
from tests.parallel.ranks import Ranks
from tests.training.commands import until


def attend_until_killed(folder, backward, exchange):
    """In a rank: the last one kills itself; what the others raise goes to a file, and they end as a script would."""
    sequence = parallel.ShardedSequence(40)
    rows = [torch.randn(1, 4, sequence.local_length, 3, requires_grad=True) for _ in range(3)]
    last = sequence.rank == sequence.ranks - 1
    if last and not backward:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        output = parallel.attend(*rows, sequence, mask=masks.causal(), exchange=exchange)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        output.sum().backward()
    except parallel.ProcessLost as error:
        (folder / f"{sequence.rank}.txt").write_text(str(error))
        os._exit(3)


@pytest.mark.parametrize(
    "count, backward, exchange", [(2, False, "ring"), (4, True, "ring"), (4, False, "ring"), (2, True, "heads")]
)
def test_killing_one_process_ends_the_others_with_a_message(tmp_path, count, backward, exchange):
    ranks = Ranks(count, tmp_path)
    ranks.send(attend_until_killed, tmp_path, backward, exchange)
    until(lambda: all(process.exitcode is not None for process in ranks.processes), 100)
    assert [process.exitcode for process in ranks.processes] == [3] * (count - 1) + [-signal.SIGKILL]
    for rank in range(count - 1):
        message = (tmp_path / f"{rank}.txt").read_text()
        assert f"Rank {rank} cannot go on" in message and f"another of the {count} processes" in message
        assert ("exchanging heads" if exchange == "heads" else "of the ring") in message
        assert "--resume" in message
