"""Rollouts of the task `agent`: how many episodes are played, how they are divided, observations standardised."""

import dataclasses

import pytest
import torch

from regard_workbench import models, tasks
from regard_workbench.models.parts.standardize import Standardize
from regard_workbench.tasks.agents.episodes import Episodes, play
from regard_workbench.tasks.agents.rollout import Rollout, keep, kept, mean_length, play_until


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


def random_policy(seen):
    return torch.cat([torch.zeros(len(seen), 3), torch.ones(len(seen), 1)], 1)


def of_lengths(lengths):
    """A `play` whose episode from seed s has lengths[s] steps, and the sizes of the groups it was asked for."""
    groups = []

    def played(seeds):
        groups.append(len(seeds))
        steps = torch.tensor([lengths[seed] for seed in seeds])
        real = torch.arange(int(steps.max())) < steps[:, None]
        numbers = real * torch.tensor(seeds)[:, None].float()
        return Episodes(
            list(seeds),
            numbers[..., None].expand(-1, -1, 3),
            real,
            numbers.long(),
            numbers,
            numbers,
            numbers,
            torch.tensor(seeds).float(),
        )

    return played, groups


def test_whole_episodes_are_played_until_there_are_enough_steps():
    played, groups = of_lengths([10] * 40)
    found = play_until(frames=95, seeds=range(40), least=1, length=50.0, play=played)
    assert groups == [2, 8] and found.seeds == list(range(10))  # 95 / 50, then (95 − 20) / 10
    played, groups = of_lengths([10] * 40)
    assert len(play_until(95, range(7), 1, 10.0, played).seeds) == 7  # no more than there are seeds
    played, groups = of_lengths([10] * 40)
    assert len(play_until(5, range(7), 4, 10.0, played).seeds) == 4  # one for each batch in any case


def test_groups_of_episodes_are_joined_with_padding_on_the_right():
    lengths = [3, 7, 5, 2, 6]
    played, groups = of_lengths(lengths)
    found = play_until(23, range(5), 1, 12.0, played)
    assert len(groups) > 1
    assert found.keep.sum(1).tolist() == lengths and found.keep.shape == (5, 7)
    for part in ("seen", "action", "reward", "log_prob", "value"):
        data = getattr(found, part).float()
        data = data[..., 0] if data.dim() == 3 else data
        assert torch.equal(data, found.keep * torch.arange(5.0)[:, None]), part
    assert found.last.tolist() == [0, 1, 2, 3, 4]


def test_each_epoch_divides_a_rollout_into_batches_of_all_its_episodes():
    rollout = Rollout.of(play("t-maze", range(3, 14), random_policy, seeded()), 0.99, 0.95)
    epochs = [[rollout.part(4 * epoch + place, 4) for place in range(4)] for epoch in range(3)]
    for parts in epochs:
        assert sorted(torch.cat(parts).tolist()) == list(range(11))
        assert {len(part) for part in parts} == {2, 3}
    assert torch.cat(epochs[0]).tolist() != torch.cat(epochs[1]).tolist()
    batch = rollout.batch(epochs[0][1])
    assert batch.notes["made_from"] == tuple(3 + row for row in epochs[0][1].tolist())
    assert batch.keep[:, -1].any()  # no longer than its longest episode


def test_a_head_keeps_a_rollout_that_is_smaller_than_it_could_be():
    task = tasks.build("agent(episodes=9)")
    head = models.build("agent(dim=8, num_heads=2)", task.problem).head
    assert mean_length(head) == 24
    for seeds in (range(40, 48), range(3, 8)):  # the second one leaves nothing of the first
        played = play("t-maze", seeds, random_policy, seeded())
        keep(head, played, parts=3)
        again = kept(head, "t-maze")
        for field in dataclasses.fields(Episodes):
            one, two = getattr(played, field.name), getattr(again, field.name)
            assert one == two if isinstance(one, list) else torch.equal(one, two), field.name
        assert mean_length(head) == pytest.approx(float(played.keep.sum(1).double().mean()))


def test_observations_are_standardised_over_all_that_was_observed():
    standardize, random = Standardize(5), seeded()
    groups = [torch.randn(count, 5, generator=random) * 3 + 7 for count in (11, 1, 29)]
    fresh = torch.randn(3, 5, generator=random)
    torch.testing.assert_close(standardize(fresh), fresh, atol=1e-3, rtol=1e-3)
    for group in groups:
        standardize.observe(group)
    every = torch.cat(groups).double()
    spread = (every.var(0, correction=0) + 1e-4).sqrt()
    torch.testing.assert_close(standardize(fresh).double(), ((fresh - every.mean(0)) / spread).clamp(-5, 5))
    standardize.observe(torch.zeros(0, 5))
    assert int(standardize.count) == 41


def test_statistics_of_what_is_seen_change_between_rollouts_only():
    task = tasks.build("agent(episodes=6, epochs=2)")
    torch.manual_seed(3)
    model = models.build("agent(dim=8, num_heads=2)", task.problem).train()
    seen, counts = [], []
    for number in range(9):  # a rollout is learned from in four batches of three
        batch = task.batch(task.examples("train"), range(3), seeded(number), model)
        counts.append(int(model.standardize.count))
        if number in (0, 1, 4, 5):  # the first epochs of two rollouts: each episode once
            seen.append(batch.inputs[batch.keep])
        with torch.no_grad():
            logs = model.eval()(batch)[..., :-1].log_softmax(-1)
        model.train()
        taken = logs.gather(-1, batch.targets[..., None])[..., 0].masked_fill(~batch.keep, 0)
        torch.testing.assert_close(taken, batch.answers["log_prob"].data)  # learned from as it was chosen
    first = len(seen[0]) + len(seen[1])
    assert counts == [0] * 4 + [first] * 4 + [first + len(seen[2]) + len(seen[3])]
    torch.testing.assert_close(model.standardize.mean, torch.cat(seen).mean(0))
