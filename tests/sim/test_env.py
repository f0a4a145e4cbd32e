"""The faces of a session: gymnasium's and PettingZoo's own checkers pass, seeds repeat, costs and pictures exist."""

import functools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test

from sim.env import SignalEnv
from sim.network import Network
from sim.parallel_env import SignalParallelEnv
from stream_jax.task import Limits
from tests.small_road import SHORT, default_session, small_network, small_scenario


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return small_network(tmp_path_factory.mktemp("net"))


@pytest.fixture
def env(grid, tmp_path) -> Iterator[SignalEnv]:
    made = SignalEnv(default_session(grid), functools.partial(small_scenario, grid, tmp_path), render_mode="rgb_array")
    yield made
    made.close()


def test_gymnasium_accepts_the_environment(env):
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        # The checker calls an unbounded observation unusual; queues and waits have no bound.
        warnings.filterwarnings("ignore", message=".*Box observation space.*")
        warnings.filterwarnings("ignore", message=".*not having a spec.*")  # it is made directly, not registered
        check_env(env, skip_render_check=False)


def test_the_same_seed_repeats_an_episode_to_its_end(env):
    runs = []
    for _ in range(2):
        observation, _ = env.reset(seed=5)
        env.action_space.seed(0)
        seen, is_over = [observation], False
        while not is_over:
            observation, reward, terminated, is_over, _ = env.step(env.action_space.sample())
            seen.append(np.append(observation, reward))
            assert not terminated
        runs.append(seen)
    assert len(runs[0]) == 1 + SHORT.duration_s // 60
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_observation_ends_with_the_action_in_force(env):
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(observation[-36:], 0.0)
    action = np.linspace(-1, 1, 36, dtype=np.float32).reshape(4, 9)
    observation, *_ = env.step(action)
    np.testing.assert_array_equal(observation[-36:], action.ravel())


def test_a_limit_that_cannot_be_kept_shows_as_cost(grid, tmp_path):
    strict = Limits(queue=1e-3)
    made = SignalEnv(default_session(grid), functools.partial(small_scenario, grid, tmp_path), strict)
    made.reset(seed=0)
    *_, info = made.step(np.zeros((4, 9), np.float32))
    made.close()
    halting = made.road.queue.sum() / 4
    np.testing.assert_allclose(info["cost"][0], halting / 1e-3 - 1.0, rtol=1e-4)


def test_the_picture_changes_with_the_road(env):
    env.reset(seed=0)
    before = env.render()
    env.step(np.zeros((4, 9), np.float32))
    after = env.render()
    assert before.dtype == np.uint8 and before.shape == after.shape and before.shape[2] == 3
    assert (before != after).any()


def test_pettingzoo_accepts_one_agent_per_intersection(grid, tmp_path):
    made = SignalParallelEnv(default_session(grid), functools.partial(small_scenario, grid, tmp_path))
    parallel_api_test(made, num_cycles=5)
    made.close()


def test_agents_see_their_own_part_and_share_the_reward(grid, tmp_path):
    made = SignalParallelEnv(default_session(grid), functools.partial(small_scenario, grid, tmp_path))
    made.reset(seed=0)
    actions = {agent: np.full(9, place / 4, np.float32) for place, agent in enumerate(made.possible_agents)}
    seen, reward, _, _, _ = made.step(actions)
    made.close()
    for agent, action in actions.items():
        np.testing.assert_array_equal(seen[agent][-9:], action)
    assert len(set(reward.values())) == 1
