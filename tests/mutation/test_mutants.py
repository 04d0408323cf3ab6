"""Mutants are small changes inside functions that still compile, the same for the same source and seed."""

from tests.mutation.mutants import chosen, of_file

SOURCE = """
LIMIT = 3


def shorter(one: list[int], other, key="len") -> bool:
    if not one:
        return True
    other.sort(key)
    return max(one[0], 2) < len(other) and key in other
"""
CHANGED = """
    if (one): | if False: | return False | pass | max(2, one[0]) | max(one[1], 2) | max(one[0], 3)
    (one[0], 2) <= len(other) | (other) or key | key not in other
"""


def test_every_kind_of_change_is_made_once_and_nothing_outside_of_functions(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(SOURCE)
    changed = [mutant.apply(SOURCE.encode()).decode() for mutant in of_file(path, tmp_path)]
    assert len(set(changed)) == len(changed) == 10
    for words in CHANGED.replace("\n", "|").split("|"):
        assert sum(words.strip() in text and words.strip() not in SOURCE for text in changed) == bool(words.strip())
    assert all("LIMIT = 3\n" in text and "list[int]" in text for text in changed)


def test_a_seed_chooses_the_same_mutants_again(tmp_path):
    (tmp_path / "a.py").write_text(SOURCE)
    first, again, other = (chosen(tmp_path, ["a.py"], 5, seed) for seed in (7, 7, 8))
    assert first == again != other and len(set(first)) == 5
