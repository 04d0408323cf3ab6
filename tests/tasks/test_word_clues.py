"""Clues of words: which there are, capitals counted by hand, groups of similar words."""

import torch

from regard_workbench import tasks
from regard_workbench.tasks.text.word_clues import WordClues, capital_classes, most_clues
from regard_workbench.tasks.text.word_clusters import clusters

ABOUT = {"Anna": (4, (1, 5)), "sleeps": (1, (0, 2))}


def clues(least=1, sentences=(("Anna", "sleeps"),)):
    found = WordClues(least, lambda word: ABOUT.get(word, (0, (-1, -1))))
    found.learn(sentences)
    return found


def test_the_clues_of_a_word_name_its_neighbours_shapes_capitals_groups_and_ends():
    first, second = clues()._of(("Anna", "sleeps"))
    assert "word 0 anna" in first and "word 1 sleeps" in first and "edge -1" in first and "edge 2" in first
    assert {"shape 0 Xx", "shape 1 x", "capitals 0 4", "capitals 1 1", "group 0 0 1", "group 1 1 2"} <= set(first)
    assert {"begins an", "ends na", "begins anna", "ends anna"} <= set(first)
    assert "pair anna sleeps" in second and not any(clue.startswith("pair") for clue in first)
    assert max(map(len, clues()._of(("a", "b", "c", "d", "e", "f", "g")))) == most_clues(2)


def test_only_clues_of_the_training_sentences_that_are_frequent_enough_have_ids():
    found = clues().ids(("Anna", "sleeps"))
    assert [len(row) for row in found] == [len(row) for row in clues()._of(("Anna", "sleeps"))]
    assert {one for row in found for one in row} == set(range(1, 1 + len(clues().known)))
    other = clues().ids(("Otto", "sleeps"))
    assert set(other[1]) < set(found[1]), "of an unknown neighbour nothing is known"
    twice = clues(2, [("Anna", "sleeps"), ("Anna", "snores")]).ids(("Anna", "sleeps"))
    assert len(twice[0]) < len(found[0]) and "word 0 sleeps" not in twice
    again = WordClues(1, ABOUT.get)
    again.restore(list(clues().known))
    assert again.known == clues().known and clues().ids(()) == []


def test_capitals_count_inside_sentences_alone():
    text = [
        ["The", "London", "fog"],
        ["In", "London", ".", "The", "fog"],
        ["Bill", "sent", "the", "bill"],
        ["a", "Bill", "and", "a", "bill", ",", "a", "bill"],
        ["the", "fog", "in", "the", "Apple", "store"],
    ]
    found = capital_classes(text)
    assert found["london"] == 4 and found["fog"] == 1
    assert found["the"] == 1, "where it begins a sentence it is not counted"
    assert found["bill"] == 2, "one of four"
    assert "apple" not in found, "seen once"


def test_groups_are_those_of_the_nearest_direction_and_words_without_a_vector_have_none():
    generator = torch.Generator().manual_seed(5)
    means = torch.eye(4, 7)
    own = torch.randint(4, (53,), generator=generator)
    own[:4] = torch.arange(4)
    vectors = (means[own] + 0.1 * torch.randn(53, 7, generator=generator)) * torch.rand(53, 1, generator=generator)
    vectors[9] = 0
    found = clusters(vectors, 4)
    assert found[9] == -1
    kept = torch.arange(53) != 9
    assert torch.equal(found[kept], own[kept])
    assert clusters(torch.zeros(3, 2), 4).tolist() == [-1] * 3
    assert clusters(vectors[:2], 5).tolist() == [0, 1], "fewer words than groups"


def test_a_run_knows_its_clues_without_the_text(tmp_path):
    lines = ["the fog in London is grey", "we saw London and the fog of Paris", "Paris is grey and the fog is wet"] * 3
    (tmp_path / "plain.txt").write_text("\n".join(lines))
    rows = "we\tO\nsaw\tO\nLondon\tB-place\n\nthe\tO\nfog\tO\n\n"
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.conll").write_text(rows)
    given = {"data": str(tmp_path), "text": str(tmp_path / "plain.txt"), "vectors": 3, "clues": 1}
    task = tasks.build("tag", **given)
    task.problem = task.problems()[0]
    other = tasks.build("tag", clues=0)
    other.restore(task.state())
    other.problem = other.problems()[0]
    assert other.streams()["clues"] == task.streams()["clues"]
    sentences = [("Paris", "is", "London")]
    assert torch.equal(other.forms.clue_ids(sentences, 4), task.forms.clue_ids(sentences, 4))
    assert task.forms._about("London")[0] == 4 and task.forms._about("fog")[0] == 1
    assert task.forms._about("nobody") == (0, [-1, -1, -1]), (
        "unknown words have no class, whatever the text calls <unk>"
    )
