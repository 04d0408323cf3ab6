"""Two and four processes, each started once for all tests here."""

import pytest

from tests.parallel.ranks import Ranks


@pytest.fixture(scope="package")
def pairs_and_fours(tmp_path_factory):
    """Ranks by their number, started when first asked for."""
    started, folder = {}, tmp_path_factory.mktemp("ranks")

    def of(count):
        if count not in started:
            started[count] = Ranks(count, folder)
        return started[count]

    yield of
    for ranks in started.values():
        ranks.close()


@pytest.fixture(params=[2, 4])
def ranks(request, pairs_and_fours):
    return pairs_and_fours(request.param)


@pytest.fixture
def two(pairs_and_fours):
    return pairs_and_fours(2)


@pytest.fixture
def four(pairs_and_fours):
    return pairs_and_fours(4)
