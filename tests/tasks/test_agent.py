"""The task `agent`: returns and the clipped loss by hand, episodes played again, training that resumes."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

import regard
from regard.errors import BadValue, Unsupported
from regard_workbench import models, tasks
from regard_workbench.inspection.inspection import inspect_model
from regard_workbench.tasks import Batch, Stream
from regard_workbench.tasks.agents.environments import CORRIDOR, TMaze, make
from regard_workbench.tasks.agents.episodes import play, replay
from regard_workbench.tasks.agents.returns import advantages, discounted
from regard_workbench.tasks.answers import Acts
from regard_workbench.tasks.measures.metrics import Answered
from regard_workbench.training.evaluation import Fingerprint

WALK, UP, DOWN = range(3)


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def random_policy(seen):
    return torch.zeros(len(seen), 4)


def test_returns_are_those_of_a_loop_over_later_steps():
    rewards = torch.randn(3, 7, dtype=torch.float64, generator=seeded())
    found = discounted(rewards, 0.9)
    for row in range(3):
        for step in range(7):
            by_hand = sum(0.9 ** (later - step) * rewards[row, later] for later in range(step, 7))
            assert float(found[row, step]) == pytest.approx(float(by_hand))


def test_advantages_are_sums_of_discounted_errors_of_real_steps_only():
    random = seeded()
    rewards, values = (torch.randn(4, 7, dtype=torch.float64, generator=random) for _ in range(2))
    lengths, last = [7, 3, 1, 5], torch.tensor([0.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    keep = torch.arange(7) < torch.tensor(lengths)[:, None]
    rewards = rewards.masked_fill(~keep, 0)
    found = advantages(rewards, values, keep, last, discount=0.9, trace=0.7)
    for row, length in enumerate(lengths):
        ahead = [*values[row, 1:length].tolist(), float(last[row])]
        errors = [float(rewards[row, t]) + 0.9 * ahead[t] - float(values[row, t]) for t in range(length)]
        for step in range(length):
            by_hand = sum((0.9 * 0.7) ** (later - step) * errors[later] for later in range(step, length))
            assert float(found[row, step]) == pytest.approx(by_hand)
        assert not found[row, length:].any()


def test_advantages_without_a_cut_trace_are_returns_minus_values():
    random = seeded()
    rewards, values = (torch.randn(2, 5, dtype=torch.float64, generator=random) for _ in range(2))
    whole = torch.ones(2, 5, dtype=torch.bool)
    found = advantages(rewards, values, whole, torch.zeros(2, dtype=torch.float64), 0.9, 1.0)
    torch.testing.assert_close(found, discounted(rewards, 0.9) - values)


def one_step(chance_then, action, advantage, returned, keep=True):
    numbers = {"log_prob": chance_then, "advantage": advantage, "return": returned, "reward": 0.0}
    real = torch.tensor([[keep]])
    answers = {"action": Stream(torch.tensor([[action]]), real)}
    answers |= {name: Stream(torch.tensor([[value]]), real) for name, value in numbers.items()}
    return Batch({"seen": Stream(torch.zeros(1, 1, 4), real)}, answers)


@pytest.mark.parametrize(
    ("then", "advantage", "expected"),
    [
        (0.5, 2.0, -2.0),  # the ratio is 1
        (0.25, 2.0, -2.4),  # 2 is cut to 1.2
        (0.25, -2.0, 4.0),  # the worse of both is taken
        (1.0, 2.0, -1.0),  # 0.5: not cut where that would be better
        (1.0, -2.0, 1.6),  # 0.5 is cut to 0.8
    ],
)
def test_the_clipped_loss_is_that_by_hand(then, advantage, expected):
    head = Acts(2, 1, episodes=1, clip=0.2, value_weight=0.0, entropy_weight=0.0).head()
    outputs = torch.zeros(1, 1, 3)  # both actions have probability 1/2
    total, count = head.loss(outputs, one_step(float(np.log(then)), 1, advantage, 0.0))
    assert float(total) == pytest.approx(expected) and float(count) == 1


def test_value_and_entropy_are_weighed_and_padding_does_not_count():
    head = Acts(2, 1, episodes=1, value_weight=0.3, entropy_weight=0.1).head()
    outputs = torch.tensor([[[0.0, 0.0, 5.0]]])
    total, _ = head.loss(outputs, one_step(float(np.log(0.5)), 0, 0.0, 2.0))
    assert float(total) == pytest.approx(0.3 * 9 - 0.1 * np.log(2))
    total, count = head.loss(outputs, one_step(0.0, 0, 3.0, 2.0, keep=False))
    assert float(total) == 0 and float(count) == 0


def test_the_error_of_the_return_is_measured_in_units_of_the_largest_one():
    head = Acts(2, 1, episodes=1, value_weight=0.3, entropy_weight=0.0).head(3)
    head.scale.fill_(20.0)
    torch.nn.init.constant_(head.value.bias, 0.5)
    torch.nn.init.zeros_(head.value.weight)
    batch = one_step(float(np.log(0.5)), 0, 0.0, 16.0)
    outputs = head(torch.zeros(1, 1, 3), batch).detach()
    assert float(outputs[0, 0, -1]) == pytest.approx(10)
    outputs[..., :2] = 0
    assert float(head.loss(outputs, batch)[0]) == pytest.approx(0.3 * (6 / 20) ** 2)


def test_beyond_the_clip_an_action_has_no_gradient():
    head = Acts(2, 1, episodes=1, value_weight=0.0, entropy_weight=0.0).head()
    for then, moves in ((0.25, False), (0.45, True)):
        outputs = torch.zeros(1, 1, 3, requires_grad=True)
        head.loss(outputs, one_step(float(np.log(then)), 1, 2.0, 0.0))[0].backward()
        assert bool(outputs.grad.any()) == moves


def test_the_maze_returns_more_the_sooner_its_right_side_is_taken():
    for seed in range(9):
        maze = TMaze()
        sign = maze.reset(seed)
        assert sorted(sign.tolist()) == [0, 0, 0, 1] and sign[:2].sum() == 1
        maze.act(UP)  # changes nothing but the time
        for _ in range(CORRIDOR):
            moment = maze.act(WALK)
        assert moment.seen.tolist() == [0, 0, 0, 1] and not moment.ended
        right = UP if sign[0] else DOWN
        assert maze.act(right).reward == pytest.approx(1 - 0.9 * (CORRIDOR + 2) / 24)
    maze.reset(0)
    moments = [maze.act(UP) for _ in range(24)]
    assert [one.cut for one in moments] == [False] * 23 + [True]


def test_episodes_are_what_the_environment_shows_for_their_actions():
    played = play("t-maze", range(30, 41), random_policy, seeded())
    for row, seed in enumerate(played.seeds):
        maze, before = TMaze(), None
        seen, length = maze.reset(seed), int(played.keep[row].sum())
        for step in range(length):
            action = int(played.action[row, step])
            code = [float(before == one) for one in range(3)]
            assert played.seen[row, step].tolist() == [*seen.tolist(), *code]
            seen, reward, ended, cut = maze.act(action)
            assert float(played.reward[row, step]) == pytest.approx(reward)
            before = action
        assert ended or cut
        assert played.keep[row, :length].all() and not played.seen[row, length:].any()
        assert float(played.log_prob[row, 0]) == pytest.approx(np.log(1 / 3))


def test_an_episode_that_is_cut_ends_with_the_return_that_was_still_expected():
    def waits(seen):
        return torch.tensor([[0.0, 9.0, 0.0, 7.0]]).expand(len(seen), -1)  # always up, and expects 7

    def walks(seen):
        return torch.where(seen[:, 3:4] > 0, torch.tensor([[0.0, 9, 0, 7]]), torch.tensor([[9.0, 0, 0, 7]]))

    assert play("t-maze", [1, 2], waits, seeded(), greedy=True).last.tolist() == [7, 7]
    assert play("t-maze", [1, 2], walks, seeded(), greedy=True).last.tolist() == [0, 0]


def test_episodes_are_played_again_from_seeds_and_actions():
    played = play("t-maze", range(7), random_policy, seeded())
    actions = torch.full((7, 24), -1)
    actions[:, : played.keep.shape[1]] = torch.where(played.keep, played.action, -1)
    again = replay("t-maze", range(7), actions)
    for name in ("seen", "keep", "action", "reward"):
        assert torch.equal(getattr(played, name), getattr(again, name)), name


@pytest.mark.parametrize("memory", ["attention", "attention, context=5", "lstm", "slots", "none"])
def test_a_policy_acts_step_by_step_as_it_reads_whole_episodes(memory):
    task = tasks.build("agent")
    torch.manual_seed(3)
    model = models.build(f"agent(memory={memory}, dim=12, num_heads=2)", task.problem).double().eval()
    seen = torch.randn(3, 11, 7, dtype=torch.float64, generator=seeded())
    whole, state = model(Batch({"seen": Stream(seen)})), model.initial_state(3)
    for step in range(11):
        one, state = model.step(seen[:, step : step + 1], state)
        torch.testing.assert_close(one[:, 0], whole[:, step])


def test_only_a_policy_with_memory_knows_what_it_saw_and_a_context_bounds_it():
    task, seen = tasks.build("agent"), torch.randn(1, 11, 7, generator=seeded())
    changed = seen.clone()
    changed[:, 2] += 1
    for memory, knows in (("none", 0), ("attention", 9), ("attention, context=4", 4), ("lstm", 9)):
        torch.manual_seed(3)
        model = models.build(f"agent(memory={memory}, dim=12, num_heads=2)", task.problem).eval()
        moved = (model(Batch.of(seen)) != model(Batch.of(changed))).any(-1)[0]
        assert moved.tolist() == [2 <= step < 2 + max(knows, 1) for step in range(11)]


def test_each_episode_is_learned_from_as_often_as_asked_before_others_are_played():
    task = tasks.build("agent(episodes=6, epochs=3)")
    model = models.build("agent(dim=8, num_heads=2)", task.problem).train()
    found = []
    for number in range(18):
        batch = task.batch(task.examples("train"), [0, 1], seeded(number), model)
        found.append(batch.notes["made_from"])
    first, second = ([seed for pair in part for seed in pair] for part in (found[:9], found[9:]))
    for part in (first, second):
        assert len(set(part)) == 6 and all(part.count(seed) == 3 for seed in part)
    assert not set(first) & set(second)


def test_the_scale_of_returns_and_the_number_of_steps_follow_what_was_played():
    pytest.importorskip("gymnasium")
    task = tasks.build("agent(env=CartPole-v1, episodes=3, epochs=1, discount=0.9)")
    torch.manual_seed(2)
    model = models.build("agent(dim=8, num_heads=2)", task.problem).train()
    frames, largest = 0, 0.0
    for number in range(4):
        batch = task.batch(task.examples("train"), range(3), seeded(number), model)
        lengths = batch.keep.sum(1).tolist()
        frames += sum(lengths)
        largest = max(largest, *((1 - 0.9**length) / (1 - 0.9) for length in lengths))
        assert int(model.head.frames) == frames
        assert float(model.head.scale) == pytest.approx(largest)
    maze = tasks.build("agent(episodes=3)")
    model = models.build("agent(dim=8, num_heads=2)", maze.problem).train()
    maze.batch(maze.examples("train"), range(3), seeded(), model)
    assert float(model.head.scale) == 1  # the least


def test_what_is_learned_from_was_chosen_by_the_policy_as_it_was():
    task = tasks.build("agent(episodes=5, epochs=2)")
    torch.manual_seed(2)
    model = models.build("decoder(dim=8, layers=1, num_heads=2, dropout=0.5)", task.problem).train()
    batch = task.batch(task.examples("train"), range(5), seeded(), model)
    assert model.training
    with torch.no_grad():
        logs = model.eval()(batch)[..., :-1].log_softmax(-1)
    taken = logs.gather(-1, batch.targets[..., None])[..., 0].masked_fill(~batch.keep, 0)
    torch.testing.assert_close(taken, batch.answers["log_prob"].data)
    gain = batch.answers["advantage"].data[batch.keep]
    assert float(gain.mean()) == pytest.approx(0, abs=1e-5) and float(gain.std(correction=0)) == pytest.approx(1)


def test_return_and_success_are_counted_by_episodes():
    task = tasks.build("agent")
    batch = task.collate(range(50), seeded())
    found = {metric.name: metric.of(Answered(None, batch)) for metric in task.metrics()[1:]}
    rewards = batch.answers["reward"].data
    by_hand = [sum(rewards[row].tolist()) for row in range(50)]
    assert found["return"] == pytest.approx([sum(by_hand), 50])
    assert found["success"] == [sum(one > 0 for one in by_hand), 50] and 0 < found["success"][0] < 50


def test_an_evaluation_names_the_seeds_and_not_what_a_model_did():
    task, hashes = tasks.build("agent"), []
    for seed in (1, 2):
        found = Fingerprint()
        found.add(task.collate(range(4), seeded(seed)))
        hashes.append(found.hexdigest)
    other = Fingerprint()
    other.add(task.collate(range(1, 5), seeded()))
    assert hashes[0] == hashes[1] != other.hexdigest


SETTINGS = {
    "model": "agent(dim=8, num_heads=2)",
    "batch_size": 3,
    "seed": 3,
    "quiet": True,
    "device": "cpu",
    "eval_limit": 4,
    "optim": {"schedule": "constant"},
}


@pytest.mark.slow
@pytest.mark.parametrize("stop", [4, 5])  # between two rollouts of four updates, and inside one
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(tmp_path, stop):
    name = "agent(episodes=6, epochs=2)"
    whole = regard.train(name, steps=9, out=tmp_path / "whole", **SETTINGS)
    regard.train(name, steps=stop, out=tmp_path / "part", **SETTINGS)
    again = regard.train(name, steps=9, out=tmp_path / "part", resume="auto", **SETTINGS)
    one, two = (next((run.folder / "checkpoints").glob("step-*9")) / "model.safetensors" for run in (whole, again))
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_attention_to_the_sign_solves_the_maze_and_without_memory_half_of_it_is_luck(tmp_path):
    found = {}
    for memory in ("attention", "none"):
        done = regard.train(
            "agent",
            model=f"agent(memory={memory})",
            steps=200,
            eval_every=200,
            out=tmp_path / memory,
            quiet=True,
            device="cpu",
        )
        found[memory] = {one.metric: one.value for one in regard.evaluate(done, device="cpu").metrics}
    assert found["attention"]["success"] >= 0.95
    assert 0.3 < found["none"]["success"] < 0.7
    assert found["attention"]["return"] > found["none"]["return"]


def test_an_episode_is_shown_step_by_step_with_what_was_attended_to():
    task = tasks.build("agent")
    torch.manual_seed(3)
    model = models.build("agent(dim=8, num_heads=2)", task.problem).eval()
    found = inspect_model(model, task)
    assert found.shown.called == "steps" and found.shown.words.startswith("an episode of t-maze that returns")
    batch = task.batch(task.examples("validation"), [0], seeded(), model)
    names = [f"{step} {task.facts.actions[action]}" for step, action in enumerate(batch.targets[0].tolist())]
    assert found.shown.pieces == names
    assert found.attributions[0].weights.shape == (len(names), len(names))


def test_a_task_pickles_without_its_episodes():
    task = tasks.build("agent(episodes=3)")
    model = models.build("agent(dim=8, num_heads=2)", task.problem).train()
    task.batch(task.examples("train"), range(3), seeded(), model)
    copy = pickle.loads(pickle.dumps(task))
    assert copy._rollout is None and copy.problems() == task.problems()


def test_wrong_options_are_refused():
    with pytest.raises(BadValue, match="memory: there is no 'big'"):
        models.build("agent(memory=big)", tasks.build("agent").problem)
    with pytest.raises(BadValue, match="does not attend to earlier steps"):
        models.build("agent(memory=lstm, context=3)", tasks.build("agent").problem)


def test_without_gymnasium_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gymnasium", None)
    with pytest.raises(Unsupported, match=r"'CartPole-v1' needs the package gymnasium.*regard\[agents\]"):
        make("CartPole-v1")


def test_an_environment_of_gymnasium_is_stepped_as_gymnasium_does():
    gymnasium = pytest.importorskip("gymnasium")
    ours, theirs = make("CartPole-v1"), gymnasium.make("CartPole-v1")
    assert ours.facts.limit == 500 and ours.facts.good == 475 and ours.facts.reached
    assert np.array_equal(ours.reset(17), theirs.reset(seed=17)[0])
    for step in range(40):
        found, (seen, reward, ended, cut, _) = ours.act(step % 2), theirs.step(step % 2)
        assert np.array_equal(found.seen, seen)
        assert (found.reward, found.ended, found.cut) == (reward, ended, cut)
        if ended:
            break
    with pytest.raises(BadValue, match="env: there is no 'Nowhere-v3' in gymnasium"):
        make("Nowhere-v3")
    with pytest.raises(BadValue, match="only a choice among several actions"):
        make("Pendulum-v1")


def test_a_grid_of_minigrid_is_read_as_one_hot_codes():
    pytest.importorskip("minigrid")
    gymnasium = pytest.importorskip("gymnasium")
    ours, theirs = make("MiniGrid-MemoryS7-v0"), gymnasium.make("MiniGrid-MemoryS7-v0")
    seen, given = ours.reset(3), theirs.reset(seed=3)[0]
    assert len(seen) == ours.facts.width == 49 * (11 + 6 + 4) + 4 and ours.facts.limit == 245
    assert ours.facts.actions[:3] == ("left", "right", "forward")
    cells = given["image"].reshape(49, 3)
    assert np.array_equal(seen[: 49 * 11].reshape(49, 11).argmax(1), cells[:, 0])
    assert np.array_equal(seen[49 * 11 : 49 * 17].reshape(49, 6).argmax(1), cells[:, 1])
    assert seen[-4:].argmax() == given["direction"]


def test_without_the_last_action_the_same_is_seen_but_for_it():
    with_it, without = tasks.build("agent"), tasks.build("agent(last_action=false)")
    assert without.problem.inputs.width == 4
    one, two = (task.collate(range(5), seeded()) for task in (with_it, without))
    assert torch.equal(one.inputs[..., :4], two.inputs) and torch.equal(one.targets, two.targets)
    torch.manual_seed(3)
    model = models.build("agent(memory=none, dim=8)", without.problem).train()
    batch = without.batch(without.examples("train"), range(16), seeded(), model)
    copy = pickle.loads(pickle.dumps(without))  # as in a resumed run: the episodes are played again
    again = copy.batch(copy.examples("train"), range(16), seeded(), model)
    assert batch.inputs.shape[-1] == again.inputs.shape[-1] == 4


def test_facts_of_the_maze_are_those_of_the_problem():
    task = tasks.build("agent")
    assert task.facts == dataclasses.replace(TMaze.facts)
    assert task.problem.inputs.width == 4 + 3 and task.problem.inputs.length == 24
