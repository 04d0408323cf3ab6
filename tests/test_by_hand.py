"""docs/attention-by-hand.md: its numbers are those of the code beside it, and of a calculation without either."""

import math
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def written():
    return runpy.run_path(str(DOCS / "by_hand.py"))


def test_the_page_is_what_its_code_writes(written):
    assert (DOCS / "attention-by-hand.md").read_text(encoding="utf-8") == written["page"]()


def test_the_numbers_by_plain_arithmetic(written):
    queries, keys, values = (written[name].tolist() for name in ("QUERY", "KEY", "VALUE"))
    text = written["page"]()
    for word, query in zip(written["WORDS"], queries, strict=True):
        powers = [math.exp((query[0] * key[0] + query[1] * key[1]) / math.sqrt(2)) for key in keys]
        shares = [power / sum(powers) for power in powers]
        mixed = [sum(share * value[side] for share, value in zip(shares, values, strict=True)) for side in (0, 1)]
        for row in (shares, mixed):
            assert f"| **{word}** | {' | '.join(f'{number:.4f}' for number in row)} |" in text
