"""Environments of gymnasium, and episodes in them: what minigrid shows, what is played again, who has ended."""

import numpy as np
import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.tasks import Batch, Stream
from regard_workbench.tasks.agents import grid_views
from regard_workbench.tasks.agents.environments import make
from regard_workbench.tasks.agents.episodes import play, replay
from regard_workbench.tasks.agents.policy import PolicyOfModel

GRIDS = [
    "MiniGrid-MemoryS7-v0",
    "MiniGrid-MemoryS13Random-v0",
    "MiniGrid-UnlockPickup-v0",  # keys and boxes are carried, doors opened
    "MiniGrid-ObstructedMaze-1Dlh-v0",  # a box contains a key
    "MiniGrid-Dynamic-Obstacles-6x6-v0",  # things move by themselves
]
MEMORIES = ["attention", "attention, context=5", "lstm", "slots", "none"]


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def minigrid():
    pytest.importorskip("minigrid")
    return pytest.importorskip("gymnasium")


@pytest.mark.parametrize("name", GRIDS)
def test_remembered_views_are_those_that_minigrid_computes(name, monkeypatch):
    gymnasium = minigrid()
    monkeypatch.setattr(grid_views, "_VIEWS", {})
    ours, theirs = make(name), gymnasium.make(name)
    draw = np.random.default_rng(7)
    moves = [0, 1, 2, 2, 3, 4, 5, 6] if len(ours.facts.actions) == 7 else [0, 1, 2]
    for seed in range(3):
        found, given = ours.reset(seed), theirs.reset(seed=seed)[0]
        for _ in range(61):
            cells = given["image"].reshape(-1, 3)
            codes = [np.eye(n, dtype=np.float32)[cells[:, i]].reshape(-1) for i, n in enumerate((11, 6, 4))]
            direction = np.eye(4, dtype=np.float32)[given["direction"]]
            assert np.array_equal(found, np.concatenate([*codes, direction]))
            action = int(draw.choice(moves))
            found, reward, ended, cut = ours.act(action)
            given, *others, _ = theirs.step(action)
            assert [reward, ended, cut] == others
            if ended or cut:
                break
    assert grid_views._VIEWS


def test_a_view_that_was_computed_once_is_looked_up(monkeypatch):
    minigrid()
    monkeypatch.setattr(grid_views, "_VIEWS", {})
    world = make("MiniGrid-MemoryS7-v0")
    world.reset(3)
    for action in (0, 0, 0, 0):  # once around
        world.act(action)
    known = len(grid_views._VIEWS)
    assert known >= 4
    for action in (0, 1, 1, 0):
        world.act(action)
    assert len(grid_views._VIEWS) == known


def test_an_episode_in_a_grid_is_shown_as_the_frames_that_minigrid_draws():
    gymnasium = minigrid()
    task = tasks.build("agent(env=MiniGrid-MemoryS7-v0)")
    torch.manual_seed(3)
    model = models.build("agent(memory=none, dim=8)", task.problem).eval()
    with torch.no_grad():
        model.head.logits.weight.zero_()
        model.head.logits.bias.copy_(torch.eye(7)[2])  # forward, where the wall is
        built = task.batch(task.examples("validation"), [5], seeded(), model)
    task.batch(task.examples("validation"), [5], seeded(), model)
    some = Batch({"seen": Stream(built.inputs[:, :9])}, {k: Stream(v.data[:, :9]) for k, v in built.answers.items()})
    shown = task.show(5, some)
    assert shown.grid == (1, 9) and shown.picture.shape == (56, 9 * 56, 3)
    world = gymnasium.make("MiniGrid-MemoryS7-v0").unwrapped
    world.reset(seed=5)
    for step in range(9):
        expected = world.get_pov_render(8).astype(np.float32) / 255
        found = shown.picture[:, step * 56 : step * 56 + 56]
        assert np.allclose(found[1:, 1:], expected[1:, 1:]), step
        world.step(2)
    assert task.show(5, built).picture is None  # 245 frames are too many


def test_an_environment_with_views_of_its_own_computes_them():
    minigrid()
    from minigrid.envs import EmptyEnv

    class Dark(EmptyEnv):
        def gen_obs(self):
            return {"image": np.zeros((7, 7, 3), np.uint8), "direction": 0, "mission": ""}

    world = Dark()
    grid_views.remember_views(world)
    assert not world.reset(seed=1)[0]["image"].any()


@pytest.mark.parametrize("name", ["MiniGrid-MemoryS7-v0", "CartPole-v1"])
def test_episodes_of_gymnasium_are_played_again_bit_for_bit(name):
    minigrid()
    count = len(make(name).facts.actions)
    played = play(name, range(20, 25), lambda seen: torch.zeros(len(seen), count + 1), seeded())
    actions = torch.full((5, make(name).facts.limit), -1)
    actions[:, : played.keep.shape[1]] = torch.where(played.keep, played.action, -1)
    again = replay(name, range(20, 25), actions)
    for part in ("seen", "keep", "action", "reward"):
        assert torch.equal(getattr(played, part), getattr(again, part)), part


@pytest.mark.parametrize("memory", MEMORIES)
def test_episodes_side_by_side_are_those_that_are_played_alone(memory):
    """Rows of finished episodes are dropped; a memory that kept the wrong ones would act differently."""
    pytest.importorskip("gymnasium")
    name = "CartPole-v1"
    task = tasks.build(f"agent(env={name})")
    torch.manual_seed(11)
    model = models.build(f"agent(memory={memory}, dim=12, num_heads=2)", task.problem).double().eval()
    torch.nn.init.normal_(model.head.logits.weight, std=3.0)  # so that actions depend on what is remembered
    with torch.no_grad():
        together = play(name, range(13), PolicyOfModel(model, 13), seeded(), greedy=True)
        assert len(set(together.keep.sum(1).tolist())) > 2
        for row in range(13):
            alone = play(name, [row], PolicyOfModel(model, 1), seeded(), greedy=True)
            steps = alone.keep.shape[1]
            assert together.keep[row].tolist() == [step < steps for step in range(together.keep.shape[1])]
            for part in ("seen", "action", "reward", "log_prob", "value"):
                torch.testing.assert_close(getattr(together, part)[row, :steps], getattr(alone, part)[0])
            torch.testing.assert_close(together.last[row], alone.last[0])


@pytest.mark.parametrize(
    "model", [*(f"agent(memory={one}, dim=12, num_heads=2)" for one in MEMORIES), "decoder(dim=8, layers=1)"]
)
def test_after_a_cut_the_return_is_expected_from_the_whole_episode_and_what_is_seen_then(model):
    task = tasks.build("agent")
    torch.manual_seed(3)
    built = models.build(model, task.problem).double().eval()
    with torch.no_grad():
        torch.nn.init.zeros_(built.head.logits.weight)
        built.head.logits.bias.copy_(torch.tensor([0.0, 9.0, 0.0]))  # turns in the corridor until the limit
        played = play("t-maze", [1, 2, 3], PolicyOfModel(built, 3), seeded(), greedy=True)
        seen = torch.cat([played.seen, played.seen[:, -1:]], 1).double()  # nothing has changed after the last step
        expected = built(Batch({"seen": Stream(seen)}))[:, -1, -1]
    assert played.keep.shape[1] == 24 and played.keep.all()
    torch.testing.assert_close(played.last, expected.float())


@pytest.mark.parametrize("memory", MEMORIES)
def test_padding_is_neither_read_nor_learned_from(memory):
    task = tasks.build("agent")
    torch.manual_seed(3)
    model = models.build(f"agent(memory={memory}, dim=12, num_heads=2)", task.problem).double()
    batch = task.collate(range(7), seeded())
    keep = batch.keep
    assert not keep.all()
    found = []
    for poison in (0.0, 100.0):
        seen = batch.inputs.double().masked_fill(~keep[..., None], poison)
        outputs = model(Batch({"seen": Stream(seen, keep)}, batch.answers))
        total, _ = model.head.loss(outputs, batch)
        found.append((outputs[keep], *torch.autograd.grad(total, list(model.parameters()))))
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two)
