"""The task `graph`: files of every form, hostile pickles, and that neighbours are what it is about."""

import builtins
import contextlib
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.errors import BadValue, Unsupported
from regard_workbench import models, tasks
from regard_workbench.tasks.formats.pickles import load_arrays
from regard_workbench.training import train

SHARED = Path(os.environ.get("REGARD_SHARED", Path(__file__).resolve().parents[3] / "shared"))
PLANETOID = SHARED / "data" / "planetoid"
COUNT, WIDTH, CLASSES = 13, 5, 3


def seeded():
    return torch.Generator().manual_seed(0)


def parts():
    """The arrays of a small npz: every node links to the next, features have one entry."""
    chain = np.arange(COUNT - 1)
    return {
        "edges": np.stack([chain, chain + 1]),
        "x_indptr": np.arange(COUNT + 1),
        "x_indices": np.arange(COUNT) % WIDTH,
        "x_data": np.arange(1, COUNT + 1, dtype=np.float32),
        "x_shape": np.array([COUNT, WIDTH]),
        "y": np.arange(COUNT) % CLASSES,
        "train": np.array([0, 1, 2, 3, 4]),
        "val": np.array([5, 6]),
        "test": np.array([7, 9, 12]),
    }


def saved(folder, **changed):
    path = folder / "made.npz"
    np.savez(path, **{name: part for name, part in {**parts(), **changed}.items() if part is not None})
    return path


def test_an_npz_is_read_and_its_splits_are_sets_of_nodes_of_one_graph(tmp_path):
    task = tasks.build("graph", data=str(saved(tmp_path)), normalize=False)
    assert [list(task.examples(split)) for split in ("train", "validation", "test")] == [
        [0, 1, 2, 3, 4],
        [5, 6],
        [7, 9, 12],
    ]
    batch = task.collate(task.examples("test"), seeded())
    assert batch.inputs.shape == (1, COUNT, WIDTH) and float(batch.inputs[0, 7, 2]) == 8.0
    assert batch.first.edges.shape == (2, 2 * (COUNT - 1))  # in both directions
    assert batch.target_keep[0].nonzero().flatten().tolist() == [7, 9, 12]
    one_way = tasks.build("graph", data=str(saved(tmp_path)), directed=True)
    assert one_way.edges.tolist() == parts()["edges"].tolist()
    assert float(one_way.features[7].sum()) == 1.0  # divided by its sum


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"edges": np.array([[0, 1], [1, 13]])}, r"edge 1 \(counted from 0\) goes from 1 to 13, but nodes are 0 to 12"),
        ({"edges": np.array([[0, -1], [1, 1]])}, "goes from -1 to 1"),
        ({"edges": np.zeros((3, 4), int)}, "edges: expected two rows"),
        ({"edges": np.zeros((2, 4))}, "edges: expected whole numbers, got float64"),
        ({"x_indices": np.full(COUNT, WIDTH)}, "x_indices: feature 5 is not among the 5 features"),
        ({"x_indptr": np.arange(COUNT)}, "x_indptr"),
        ({"x_data": np.zeros(3, np.float32)}, "x_indptr"),
        ({"x_data": np.full(COUNT, np.nan, np.float32)}, "the features of node 0 are not finite"),
        ({"x_shape": np.array([COUNT])}, "x_shape: expected two numbers"),
        ({"x_shape": np.array([2**40, 2**40])}, "GiB"),
        ({"y": np.zeros(3, int)}, "classes for 3 nodes, but features for 13"),
        ({"test": np.array([99])}, "test: there is no node 99"),
        ({"test": np.array([0])}, "node 0 is in train and in test"),
        ({"y": np.full(COUNT, -1)}, "train: node 0 has no class"),
        ({"val": np.zeros(0, int)}, "validation: expected the numbers of some nodes"),
        ({"y": None}, "has no array 'y'"),
        ({"y": np.array([object()] * COUNT)}, "holds an array that is refused"),
    ],
)
def test_what_is_wrong_with_an_npz_is_said_with_its_name(tmp_path, changed, words):
    path = saved(tmp_path, **changed)
    with pytest.raises(BadValue, match=words) as error:
        tasks.build("graph", data=str(path))
    assert path.name in str(error.value)


def test_a_file_that_is_no_npz_is_refused(tmp_path):
    for raw in (b"", b"PK\x03\x04 torn", saved(tmp_path).read_bytes()[:300]):
        path = tmp_path / "torn.npz"
        path.write_bytes(raw)
        with pytest.raises(BadValue, match=r"torn\.npz"):
            tasks.build("graph", data=str(path))


def planetoid(folder):
    """Planetoid's files of the small graph: 5 training nodes, 2 more, 3 test nodes, written by numpy and scipy."""
    from scipy.sparse import csr_matrix

    known, test = 10, [10, 12, 11]
    given = parts()
    dense = np.zeros((COUNT, WIDTH), np.float32)
    dense[np.arange(COUNT), given["x_indices"]] = given["x_data"]
    hot = np.eye(CLASSES, dtype=np.int32)[given["y"]]
    graph = {node: [other for other in (node - 1, node + 1) if 0 <= other < COUNT] for node in range(COUNT)}
    contents = {
        "x": csr_matrix(dense[:5]),
        "y": hot[:5],
        "tx": csr_matrix(dense[test]),
        "ty": hot[test],
        "allx": csr_matrix(dense[:known]),
        "ally": hot[:known],
        "graph": graph,
    }
    for name, content in contents.items():
        (folder / f"ind.small.{name}").write_bytes(pickle.dumps(content, protocol=2))
    (folder / "ind.small.test.index").write_text("".join(f"{node}\n" for node in test))
    return dense, given["y"]


def test_planetoids_files_are_read_without_running_what_is_in_them(tmp_path):
    dense, labels = planetoid(tmp_path)
    task = tasks.build("graph", data=str(tmp_path), normalize=False)
    assert np.array_equal(task.graph.features, dense) and np.array_equal(task.graph.labels, labels)
    assert {split: list(task.examples(split)) for split in ("train", "validation", "test")} == {
        "train": [0, 1, 2, 3, 4],
        "validation": [5, 6, 7, 8, 9],
        "test": [10, 11, 12],
    }
    assert {tuple(pair) for pair in task.graph.edges.T.tolist()} == {
        (a, b) for a in range(COUNT) for b in (a - 1, a + 1) if 0 <= b < COUNT
    }
    (tmp_path / "ind.small.ty").unlink()
    with pytest.raises(BadValue, match=r"no file ind\.small\.ty"):
        tasks.build("graph", data=str(tmp_path))


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


RAN = []


def remember(*arguments):
    RAN.append(arguments)


HOSTILE = {
    "a shell command": pickle.dumps(Calls(os.system, "touch pwned")),
    "eval": pickle.dumps(Calls(builtins.eval, "1 + 1")),
    "a function of a module": pickle.dumps(Calls(remember, 1)),
    "getattr": pickle.dumps(Calls(getattr, [], "append")),
    "numpy's own loader": b"cnumpy\nload\n(S'x'\ntR.",
    "a method of an admitted class": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.tofile\x93.",
    "an array of objects": pickle.dumps(np.array([{}, []], dtype=object), protocol=2),
    "an array that lies about its size": pickle.dumps(np.zeros(4), protocol=2).replace(b"K\x04\x85", b"K\x63\x85"),
    "something outside of itself": b"Pname\n.",
    "an extension": b"\x82\x01.",
    "a torn file": pickle.dumps(np.zeros(4), protocol=2)[:40],
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused_and_runs_nothing(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "ind.bad.x"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(BadValue, match=r"ind\.bad\.x"):
        load_arrays(path)
    assert not RAN and not (tmp_path / "pwned").exists()


def test_what_a_pickle_does_to_one_stand_in_reaches_no_other_file(tmp_path):
    evil = tmp_path / "evil"
    # csr_matrix itself, not an instance of it, gets an attribute.
    evil.write_bytes(b"cscipy.sparse.csr\ncsr_matrix\n(N}S'__setstate__'\nI1\nstb.")
    with contextlib.suppress(BadValue):
        load_arrays(evil)
    planetoid(tmp_path)
    assert set(load_arrays(tmp_path / "ind.small.x")) >= {"data", "indices", "indptr"}


@pytest.mark.skipif(not PLANETOID.is_dir(), reason="no shared data here; REGARD_SHARED names its folder")
def test_the_pickles_of_cora_hold_the_graph_of_its_npz(tmp_path):
    npz = tasks.build("graph", data=str(PLANETOID / "cora.npz")).graph
    for path in PLANETOID.glob("ind.cora.*"):
        shutil.copy(path, tmp_path)
    original = tasks.build("graph", data=str(tmp_path)).graph
    assert np.array_equal(npz.features, original.features) and np.array_equal(npz.labels, original.labels)
    for split in npz.splits:
        assert np.array_equal(npz.splits[split], original.splits[split])
    undirected = [
        {tuple(sorted(pair)) for pair in graph.edges.T.tolist() if pair[0] != pair[1]} for graph in (npz, original)
    ]
    assert undirected[0] == undirected[1] and len(undirected[0]) == 5278


NODES = "".join(f"paper{n} {n % 2} {n % 3}.5 {'art' if n % 2 else 'law'}\n" for n in range(20))


def listed(folder, edges="paper0 paper1\npaper3\tpaper2  # cites\npaper4,paper9\n", nodes=NODES):
    (folder / "made.cites").write_text(edges)
    (folder / "made.content").write_text(nodes)
    return str(folder)


def test_an_edge_list_with_a_table_of_nodes_is_read(tmp_path):
    task = tasks.build("graph", data=listed(tmp_path))
    assert task.graph.edges.T.tolist() == [[0, 1], [3, 2], [4, 9]]
    assert task.fitted.classes == ["art", "law"] and task.graph.names[7] == "paper7"
    sets = [set(task.examples(split)) for split in ("train", "validation", "test")]
    assert set.union(*sets) == set(range(20)) and [len(one) for one in sets] == [16, 2, 2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"edges": "paper0 paper1\npaper0 paper99\n"}, r"made\.cites:2: the node 'paper99' is not in made\.content"),
        ({"edges": "paper0 paper1\n\npaper0\n"}, r"made\.cites:3: expected two nodes"),
        ({"edges": "paper0 paper1\npaper1 paper2 0.5\n"}, r"made\.cites:2: .*weights of edges are not read"),
        (
            {"nodes": NODES.replace("\n", "\npaper77 nan 1 x\n", 1)},
            r"made\.content:2: a number is not finite\. Replace NaN",
        ),
        ({"nodes": NODES + "late 1 art\n"}, r"made\.content:21: has 1 numbers between name and class, expected 2"),
        ({"nodes": NODES + "paper3 1 1 art\n"}, r"made\.content:21: the node 'paper3' is there twice"),
        ({"nodes": NODES + "late 1 x art\n"}, r"made\.content:21: expected numbers"),
        ({"nodes": "a art\nb law\n"}, r"made\.content:1: has 0 numbers"),
    ],
)
def test_what_is_wrong_with_an_edge_list_is_said_with_file_and_line(tmp_path, given, words):
    with pytest.raises(BadValue, match=words):
        tasks.build("graph", data=listed(tmp_path, **given))


def test_dangling_edges_may_be_left_out_and_missing_files_are_named(tmp_path):
    folder = listed(tmp_path, edges="paper0 paper99\npaper1 paper2\n")
    assert tasks.build("graph(dangling=drop)", data=folder).graph.edges.T.tolist() == [[1, 2]]
    with pytest.raises(BadValue, match="needs a table of nodes"):
        tasks.build("graph", data=str(tmp_path / "made.cites"))
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(BadValue, match="holds no graph"):
        tasks.build("graph", data=str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("name", ["graph", "graph(version=2)", "encoder"])
def test_a_node_alone_with_its_neighbourhood_is_answered_as_in_the_whole_graph(name):
    task = tasks.build("graph")
    torch.manual_seed(0)
    model = models.build(name, task.problem).eval()
    with torch.no_grad():
        whole = model(task.collate(task.examples("validation"), seeded()))[0]
        for node in task.examples("test")[:3]:
            alone = task.collate([node], seeded())
            assert alone.inputs.shape[1] < len(whole)
            torch.testing.assert_close(model(alone)[0, 0], whole[node])
            assert model.predict(model(alone), alone) == [[int(whole[node].argmax())]]


def test_a_node_is_named_and_shown_with_its_neighbourhood():
    task = tasks.build("graph")
    node = task.parse({"text": " 17 "})
    shown = task.show(node, task.collate([node], seeded()))
    assert shown.pieces[0] == "17 (community 2)" and len(shown.pieces) == task.collate([node], seeded()).inputs.shape[1]
    assert task.decode([3]) == "community 3"
    with pytest.raises(BadValue, match=r"no node 'nobody'.*for instance 0, 1"):
        task.parse({"text": "nobody"})


def test_the_state_of_a_run_restores_sizes_and_classes(tmp_path):
    task = tasks.build("graph", data=str(saved(tmp_path)))
    again = tasks.build("graph", task.state())
    assert again.problems() == task.problems() and again.fitted.classes == ["0", "1", "2"]


def test_the_penalty_is_half_the_sum_of_squares_and_only_in_training():
    task = tasks.build("graph")
    torch.manual_seed(0)
    batch = task.collate(task.examples("train"), seeded())
    model = models.build("graph(decay=0.5, dropout=0, attention_dropout=0)", task.problem)
    outputs = model(batch)
    squares = sum(float(p.detach().square().sum()) for n, p in model.named_parameters() if not n.endswith("bias"))
    train_loss, count = model.loss(outputs, batch)
    loss, _ = model.eval().loss(outputs, batch)
    assert float((train_loss - loss).detach() / count) == pytest.approx(0.25 * squares, rel=1e-4)


def test_padding_of_graphs_is_refused():
    task = tasks.build("graph")
    model = models.build("graph", task.problem)
    batch = task.collate(task.examples("train"), seeded())
    keep = torch.ones(batch.inputs.shape[:2], dtype=torch.bool)
    keep[0, -1] = False
    padded = tasks.Batch({"nodes": tasks.Stream(batch.inputs, keep, batch.first.edges)}, batch.answers)
    with pytest.raises(Unsupported, match="has padding"):
        model(padded)


@pytest.mark.slow
def accuracy(task, folder, **settings):
    given = {"task": task, "out": str(folder), "device": "cpu", "eval_every": 50, **settings}
    return train(given, quiet=True).metrics["accuracy"]  # of the last validation


def test_neighbours_tell_what_words_do_not(tmp_path):
    with_edges = accuracy("graph", tmp_path / "with", steps=50, model="graph(dim=16, num_heads=2, dropout=0.3)")
    alone = accuracy("graph(hops=0)", tmp_path / "alone", steps=50, batch_size=1, model="graph(dim=16, num_heads=2)")
    assert with_edges > 0.75 and alone < 0.65


@pytest.mark.slow
@pytest.mark.nightly
def test_version_2_reaches_what_the_recipe_states_too(tmp_path):
    least = tasks.build("graph").recipe.reaches["accuracy"]
    assert accuracy("graph", tmp_path / "run", model="graph(version=2)") >= least
