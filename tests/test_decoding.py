"""Decoding against exhaustive search, with and without a cache, and with dead ends."""

import itertools
import math

import pytest
import torch

import regard
from regard.decoding import Hypothesis, beam_search, greedy, sample

VOCAB, END = 4, 0


def random_model(seed, vocab=VOCAB):
    """A step whose log-probabilities depend on the whole prefix, by hashing it into a table."""
    table = torch.randn(997, vocab, generator=torch.Generator().manual_seed(seed)).mul(2).log_softmax(-1)

    def step(prefixes):
        code = torch.zeros(len(prefixes), dtype=torch.long)
        for column in prefixes.T:
            code = (code * 31 + column + 7) % 997
        return table[code]

    return step


def every_sequence(step, start, max_length, alpha, vocab=VOCAB):
    """All sequences that end, or reach max_length, with their scores, best first, by brute force."""
    found = []
    for length in range(1, max_length + 1):
        for tokens in itertools.product(range(vocab), repeat=length):
            if END in tokens[:-1] or (tokens[-1] != END and length < max_length):
                continue
            total = 0.0
            for t, token in enumerate(tokens):
                prefix = torch.tensor([[*start, *tokens[:t]]])
                total += step(prefix)[0, token].double().item()
            found.append((-total / length**alpha, list(tokens)))
    return sorted(found)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_that_holds_everything_is_exhaustive_search(seed, alpha):
    step, start = random_model(seed), [3, 1]
    expected = every_sequence(step, start, 4, alpha)
    for n_best in (1, 5):
        found = beam_search(
            step, torch.tensor([start]), end=END, beam=300, max_length=4, length_penalty=alpha, n_best=n_best
        )[0]
        assert [h.tokens for h in found] == [tokens for _, tokens in expected[:n_best]]
        for hypothesis, (score, _) in zip(found, expected, strict=False):
            assert hypothesis.score == pytest.approx(-score, abs=1e-9)


@pytest.mark.parametrize(
    ("penalty", "best", "score"),
    [
        # after one token 0.4, after four 0.6 · 0.9 · 0.9 · 0.7 = 0.3402, after two 0.6 · 0.1 = 0.06
        (0.0, [END], math.log(0.4)),
        (0.1, [END], math.log(0.4)),  # −0.9163 against −1.0782 / 4^0.1 = −0.9386
        (0.15, [1, 1, 1, END], math.log(0.3402) / 4**0.15),  # −0.8758
        (1.0, [1, 1, 1, END], math.log(0.3402) / 4),
        (-1.0, [END], math.log(0.4)),
    ],
)
def test_the_length_penalty_decides_between_a_short_and_a_long_text_worked_out_by_hand(penalty, best, score):
    """A chain: the end at once with 0.4; else a 1, after which the end has 0.1, 0.1 and 0.7."""
    ends = torch.tensor([0.4, 0.1, 0.1, 0.7])
    rows = torch.stack([ends, 1 - ends, torch.zeros(4), torch.zeros(4)], 1).log()
    (found,) = beam_search(
        lambda prefixes: rows[[prefixes.shape[1] - 1] * len(prefixes)],
        torch.tensor([[3]]),
        end=END,
        beam=3,
        max_length=4,
        length_penalty=penalty,
    )[0]
    assert found.tokens == best and found.score == pytest.approx(score, abs=1e-6)


def by_the_definition(step, start, beam, max_length, alpha, n_best):
    """Beam search without early stopping, from sorted lists: a finished one keeps its slot."""
    live, done = [(0.0, [])], []
    for length in range(1, max_length + 1):
        candidates = []
        for total, tokens in live:
            row = step(torch.tensor([[*start, *tokens]]))[0].double().tolist()
            candidates += [(-(total + row[v]), [*tokens, v]) for v in range(len(row)) if row[v] > -math.inf]
        chosen = sorted(candidates)[: beam - len(done)]
        live = []
        for cost, tokens in chosen:
            if tokens[-1] == END or length == max_length:
                done.append((cost / length**alpha, tokens))
            else:
                live.append((-cost, tokens))
    return sorted(done)[:n_best]


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0])
@pytest.mark.parametrize("beam", [1, 2, 3, 7])
def test_beams_equal_the_definition_and_a_batch_equals_its_rows(beam, alpha):
    start = torch.tensor([[1, 2], [3, 3], [2, 1]])
    for seed in range(4):
        step = random_model(seed)
        found = beam_search(step, start, end=END, beam=beam, max_length=6, length_penalty=alpha, n_best=min(2, beam))
        for row, hypotheses in zip(start.tolist(), found, strict=True):
            expected = by_the_definition(step, row, beam, 6, alpha, min(2, beam))
            assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
            assert [h.score for h in hypotheses] == pytest.approx([-cost for cost, _ in expected])


class Cached:
    """A step that caches the prefix of each row, and fails when rows moved without a call of `reorder`."""

    def __init__(self, step):
        self.step, self.rows = step, None

    def __call__(self, prefixes):
        if self.rows is not None:
            assert torch.equal(self.rows, prefixes[:, :-1]), "the cache does not belong to these prefixes"
        self.rows = prefixes.clone()
        return self.step(prefixes)

    def reorder(self, index):
        self.rows = self.rows[index]


@pytest.mark.parametrize("beam", [1, 3, 8])
def test_reorder_is_called_when_rows_move(beam):
    step, start = random_model(5), torch.tensor([[1], [2], [3]])
    plain = beam_search(step, start, end=END, beam=beam, max_length=7, n_best=1)
    assert beam_search(Cached(step), start, end=END, beam=beam, max_length=7, n_best=1) == plain
    torch.manual_seed(1)
    drawn = sample(step, start, end=END, max_length=9)
    torch.manual_seed(1)
    assert sample(Cached(step), start, end=END, max_length=9) == drawn


def test_beam_one_is_greedy():
    step = random_model(2)
    for first in range(1, VOCAB):
        tokens, prefix = [], [first]
        while len(tokens) < 8 and (not tokens or tokens[-1] != END):
            tokens.append(int(step(torch.tensor([prefix]))[0].argmax()))
            prefix.append(tokens[-1])
        assert greedy(step, torch.tensor([[first]]), end=END, max_length=8)[0].tokens == tokens


def fixed(rows):
    """A step with one distribution for each length of the prefix."""
    table = torch.tensor(rows, dtype=torch.float64).log()
    return lambda prefixes: table[prefixes.shape[1] - 1].expand(len(prefixes), -1)


def test_ties_go_to_the_lowest_ids():
    step = fixed([[0.25] * 4] * 3)
    found = beam_search(step, torch.tensor([[1]]), end=END, beam=4, max_length=3, length_penalty=0.0, n_best=4)[0]
    assert [h.tokens for h in found] == [[0], [1, 0], [1, 1, 0], [1, 1, 1]]
    assert beam_search(step, torch.tensor([[1]]), end=3, beam=1, max_length=2)[0][0].tokens == [0, 0]


def test_sequences_that_end_at_once_or_never():
    at_once = fixed([[1.0, 0.0, 0.0]] * 4)
    found = beam_search(at_once, torch.tensor([[1]]), end=END, beam=3, max_length=4, n_best=3)[0]
    assert [h.tokens for h in found] == [[0]] and found[0].score == 0.0  # no other sequence exists
    never = fixed([[0.0, 0.5, 0.5]] * 4)
    found = beam_search(never, torch.tensor([[1]]), end=END, beam=3, max_length=4, n_best=3)[0]
    assert [h.tokens for h in found] == [[1, 1, 1, 1], [1, 1, 1, 2], [1, 1, 2, 1]]
    assert not any(h.finished for h in found)


def test_a_vocabulary_smaller_than_the_beam():
    step = random_model(1, vocab=2)
    expected = every_sequence(step, [1], 5, 1.0, vocab=2)
    found = beam_search(step, torch.tensor([[1]]), end=END, beam=9, max_length=5, n_best=6)[0]
    assert [h.tokens for h in found] == [tokens for _, tokens in expected[:6]]


def test_the_search_stops_when_no_live_prefix_can_win():
    calls = []

    def step(prefixes):
        calls.append(prefixes.shape[1])
        return torch.tensor([[0.98, 0.01, 0.01]]).log().expand(len(prefixes), -1)

    found = beam_search(step, torch.tensor([[1]]), end=END, beam=5, max_length=50, length_penalty=0.0)
    assert found[0][0].tokens == [0] and len(calls) == 1


def test_empty_batches_and_max_length_zero():
    step = random_model(0)
    assert beam_search(step, torch.zeros(0, 2, dtype=torch.long), end=END) == []
    assert sample(step, torch.zeros(0, 2, dtype=torch.long), end=END) == []
    start, nothing = (torch.tensor([[1], [2]]), Hypothesis([], 0.0, finished=False))  # unfinished sequences count
    assert beam_search(step, start, end=END, max_length=0, n_best=2) == [[nothing], [nothing]]
    assert greedy(step, start, end=END, max_length=0) == sample(step, start, end=END, max_length=0) == [nothing] * 2


def tree(ways, vocab=VOCAB):
    """A step with given probabilities of the next token after some prefixes; every other prefix is a dead end."""

    def step(prefixes):
        found = torch.full((len(prefixes), vocab), -math.inf, dtype=torch.float64)
        for row, prefix in enumerate(prefixes[:, 1:].tolist()):
            for token, probability in ways.get(tuple(prefix), {}).items():
                found[row, token] = math.log(probability)
        return found

    return step


# Token 3 is likely but leads to a dead end; exactly three sequences exist.
TRAPS = tree(
    {
        (): {3: 0.6, 2: 0.3, 1: 0.1},
        (2,): {3: 0.7, 1: 0.3},
        (2, 1): {END: 1.0},
        (1,): {END: 0.5, 1: 0.5},
        (1, 1): {END: 1.0},
    }
)
THREE = {(2, 1, END): 0.09, (1, END): 0.05, (1, 1, END): 0.05}


@pytest.mark.parametrize("beam", [1, 2, 3, 9])
def test_dead_ends_leave_fewer_sequences_only_where_fewer_exist(beam):
    start = torch.tensor([[1]])
    for n_best in range(1, min(beam, 5) + 1):
        found = beam_search(TRAPS, start, end=END, beam=beam, n_best=n_best, length_penalty=0.0)[0]
        assert len(found) == min(n_best, 3)
        for hypothesis in found:
            assert hypothesis.finished and hypothesis.score == pytest.approx(math.log(THREE[tuple(hypothesis.tokens)]))
    assert greedy(TRAPS, start, end=END)[0].tokens == [2, 1, END]


def test_only_the_rows_that_ran_into_dead_ends_are_searched_again():
    ways = {(): {1: 1.0}, (1,): {END: 1.0}}
    either = lambda p: torch.where(p[:, :1] == 1, TRAPS(p), tree(ways)(p))  # noqa: E731
    calls = []

    def step(prefixes):
        calls.append(len(prefixes))
        return either(prefixes)

    found = beam_search(step, torch.tensor([[2], [1], [2]]), end=END, beam=1)
    assert [best[0].tokens for best in found] == [[1, END], [2, 1, END], [1, END]]
    assert calls == [3, 3, 1, 2, 2]  # the three rows with a beam of 1, then one of them with a beam of 2


class GoesOn:
    """A step with a cache, which cannot start again."""

    def __init__(self, step):
        self.step = step

    def __call__(self, prefixes):
        return self.step(prefixes)

    def reorder(self, index):
        pass


def test_errors_explain_dead_ends_that_cannot_be_avoided():
    start, dead = torch.tensor([[2], [1]]), tree({})
    assert beam_search(dead, start, end=END) == [[], []]
    with pytest.raises(regard.RegardError, match="no sequence exists for row 0"):
        greedy(dead, start, end=END)
    with pytest.raises(regard.RegardError, match=r"cannot sample for row 0 .* after \[\]"):
        sample(dead, start, end=END)
    with pytest.raises(regard.RegardError, match=r"cannot sample for row 1 .* after \[1\]"):
        sample(lambda p: torch.where(p[:, :1] == 1, tree({(): {1: 1.0}})(p), math.log(0.25)), start, end=END)
    with pytest.raises(regard.RegardError, match=r"beam: .*row 1 of start.*Widen the beam"):
        beam_search(GoesOn(lambda p: torch.where(p[:, :1] == 1, TRAPS(p), math.log(0.25))), start, end=END, beam=1)
    assert beam_search(GoesOn(tree({(): {1: 1.0}})), start, end=END, beam=1) == [[], []]  # no prefix was cut


def test_samples_follow_the_distribution_of_the_model():
    step = fixed([[0.2, 0.5, 0.3]])
    torch.manual_seed(0)
    rows = sample(step, torch.ones(20_000, 1, dtype=torch.long), end=END, max_length=1)
    share = [sum(h.tokens == [v] for h in rows) / 20_000 for v in range(3)]
    for found, expected in zip(share, (0.2, 0.5, 0.3), strict=True):
        assert abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / 20_000)
    again = [
        sample(
            step, torch.ones(9, 1, dtype=torch.long), end=END, generator=torch.Generator().manual_seed(3), max_length=1
        )
        for _ in range(2)
    ]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 2}),
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.51}, {1, 2}),
        ({"top_p": 0.01}, {1}),
        ({"temperature": 0.01}, {1}),
        ({"top_p": 1.0, "top_k": 99}, {0, 1, 2}),
    ],
)
def test_top_k_and_top_p_keep_the_expected_tokens(options, allowed):
    step = fixed([[0.2, 0.5, 0.3]])
    rows = sample(step, torch.ones(500, 1, dtype=torch.long), end=END, max_length=1, **options)
    assert {h.tokens[0] for h in rows} == allowed


def test_the_score_of_a_sample_is_that_of_the_model():
    found = sample(fixed([[0.2, 0.5, 0.3]]), torch.tensor([[1]]), end=END, max_length=1, top_k=1, temperature=0.1)
    assert found[0].score == pytest.approx(math.log(0.5))


def test_errors_name_the_argument():
    step, start = random_model(0), torch.tensor([[1]])
    for call, word in [
        (lambda: beam_search(step, start, end=END, beam=2, n_best=3), "n_best"),
        (lambda: beam_search(step, start, end=END, beam=0), "beam"),
        (lambda: beam_search(step, start, end=9), "end"),
        (lambda: beam_search(step, start.float(), end=END), "start"),
        (lambda: beam_search(step, start[0], end=END), "start"),
        (lambda: beam_search(step, start, end=END, length_penalty=math.nan), "length_penalty"),
        (lambda: beam_search(lambda p: torch.ones(len(p), 3), start, end=END), "log_softmax"),
        (lambda: beam_search(lambda p: torch.full((len(p), 3), math.nan), start, end=END), "NaN"),
        (lambda: beam_search(lambda p: torch.zeros(3), start, end=END), "step"),
        (lambda: sample(step, start, end=END, temperature=0), "temperature"),
        (lambda: sample(step, start, end=END, top_p=0.0), "top_p"),
        (lambda: sample(step, start, end=END, top_k=0), "top_k"),
    ]:
        with pytest.raises(regard.RegardError, match=word):
            call()
