"""The order of the data: a function of the seed and the batch index."""

import itertools

import pytest

from regard.errors import BadValue
from regard_workbench.training.data import Order, generator

EXAMPLES = [[0] * (1 + 7 * i % 31) for i in range(103)]


def order(seed=0, bucket=4, batch_size=5, examples=EXAMPLES):
    return Order(examples, batch_size, seed, len, bucket)


@pytest.mark.parametrize("bucket", [0, 1, 4, 1000])
def test_every_epoch_visits_every_example_once(bucket):
    made = order(bucket=bucket)
    assert made.per_epoch == 21
    for epoch in range(3):
        batches = [made[index] for index in range(epoch * 21, (epoch + 1) * 21)]
        assert sorted(itertools.chain(*batches)) == list(range(103))
        assert sorted(map(len, batches)) == [3] + [5] * 20


def test_a_batch_depends_on_its_index_alone():
    forwards, backwards = order(), order()
    indices = list(range(63))
    assert [forwards[i] for i in indices] == [backwards[i] for i in reversed(indices)][::-1]


def test_epochs_and_seeds_differ():
    made = order()
    assert [made[p] for p in range(21)] != [made[p] for p in range(21, 42)]
    assert [made[p] for p in range(21)] != [order(seed=1)[p] for p in range(21)]


def test_batches_hold_examples_of_similar_length():
    def spread(made):
        lengths = [[len(EXAMPLES[i]) for i in made[p]] for p in range(21)]
        return sum(max(row) - min(row) for row in lengths)

    assert spread(order(bucket=21)) < 0.25 * spread(order(bucket=0))


def test_batches_of_a_pool_are_not_sorted_by_length():
    made = order(bucket=21)
    lengths = [len(EXAMPLES[made[p][0]]) for p in range(21)]
    assert lengths != sorted(lengths)


def test_lengths_are_computed_for_the_current_pool_only():
    calls = []
    made = Order(EXAMPLES, 5, 0, lambda example: calls.append(1) or len(example), 4)
    made[0]
    assert len(calls) == 20


def test_no_examples_is_an_error():
    with pytest.raises(BadValue, match="no examples"):
        order(examples=[])


def test_generators_depend_on_their_purpose_alone():
    draw = lambda *purpose: generator(*purpose).initial_seed()  # noqa: E731
    assert draw(0, "order", 1) == draw(0, "order", 1)
    assert len({draw(0, "order", 1), draw(0, "order", 2), draw(1, "order", 1), draw(0, "pool", 1)}) == 4
