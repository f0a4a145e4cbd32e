"""Environments by name: the official checkers pass for both actions, on grids and on a user's own files."""

import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test

from sim import environments, registration
from sim.errors import RoadError
from sim.lookahead import LookaheadDriver
from sim.nema import NemaController
from sim.network import Network
from tests.small_networks import main_street
from tests.small_road import small_network

SHORT = {"minutes": 3, "warmup_minutes": 1}
DRIVERS = {"prices": LookaheadDriver, "greens": NemaController}


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Network:
    return small_network(tmp_path_factory.mktemp("net"))


@pytest.fixture
def street(tmp_path) -> Path:
    """A .sumocfg with a network of two signals and vehicles that depart from second 1000 on."""
    net, routes = main_street(tmp_path), tmp_path / "t.rou.xml"
    ways = [("west-A", "B-east"), ("north-A", "A-south"), ("side-B", "A-west")]
    trips = [f'<trip id="{k}" depart="{1000 + 3 * k}" from="{a}" to="{b}"/>' for k, (a, b) in enumerate(ways * 10)]
    routes.write_text(f"<routes>{''.join(trips)}</routes>")
    config = tmp_path / "street.sumocfg"
    config.write_text(
        f'<configuration><input><net-file value="{net.name}"/><route-files value="{routes.name}"/></input>'
        '<time><begin value="1000"/></time></configuration>'
    )
    return config


@pytest.mark.parametrize("action", DRIVERS)
def test_gymnasium_makes_and_accepts_the_environment_by_its_name(action, grid):
    env = gymnasium.make(
        registration.ENV_ID, network=grid.net_file, action=action, render_mode="rgb_array", **SHORT
    ).unwrapped
    assert isinstance(env.session.driver, DRIVERS[action])
    with warnings.catch_warnings():
        warnings.filterwarnings("error")
        # The checker calls an unbounded observation unusual; queues and waits have no bound.
        warnings.filterwarnings("ignore", message=".*Box observation space.*")
        check_env(env, skip_render_check=False)
    env.close()


@pytest.mark.parametrize("action", DRIVERS)
def test_pettingzoo_accepts_one_agent_per_signal(action, grid):
    made = environments.parallel_env(grid.net_file, action=action, **SHORT)
    parallel_api_test(made, num_cycles=5)
    made.close()


def test_prices_are_what_is_set_unless_greens_are_asked_for(grid):
    env = environments.signal_env(grid.net_file, **SHORT)
    assert isinstance(env.session.driver, LookaheadDriver)
    assert env.action_space.shape == (4, 9)


def test_several_environments_can_be_open_at_once_and_drive_alike(grid):
    first, second = (environments.signal_env(grid.net_file, **SHORT) for _ in range(2))
    seen = [env.reset(seed=3)[0] for env in (first, second)]
    assert (first.session.cfg.backend, second.session.cfg.backend) == ("libsumo", "traci")
    rest = np.zeros((4, 9), np.float32)
    after = [env.step(rest)[0] for env in (first, second)]
    for env in (first, second):
        env.close()
    np.testing.assert_array_equal(*seen)
    np.testing.assert_array_equal(*after)


def test_a_configuration_brings_its_own_vehicles_and_its_begin(street):
    env = environments.signal_env(street, minutes=4, warmup_minutes=0)
    env.reset(seed=0)
    is_over = False
    while not is_over:
        *_, is_over, _ = env.step(np.zeros((2, 9), np.float32))
    assert env.session.totals()["trips_finished"] == 30
    env.close()


def test_only_the_present_episodes_trips_are_on_disk(grid):
    env = environments.signal_env(grid.net_file, **SHORT)
    folder = env.make_scenario.folder
    for seed in range(3):
        env.reset(seed=seed)
    assert len(list(folder.iterdir())) == 1
    env.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"action": "offsets"}, "action 'offsets' is none of prices, greens"),
        ({"minutes": 0}, "0 minutes after 10 of warm-up are no episode"),
        ({"routes": "t.rou.xml", "vehicles_per_hour": 100.0}, "routes say how many vehicles"),
        ({"vehicles_per_hour": -1.0}, "must be a positive number"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(options, sentence, grid):
    with pytest.raises(RoadError, match=sentence):
        environments.signal_env(grid.net_file, **options).reset(seed=0)


def test_the_name_is_known_by_importing_sim_and_nothing_heavy_is_loaded_for_it():
    code = (
        "import sys, sim, gymnasium\n"
        f"assert gymnasium.spec({registration.ENV_ID!r}).entry_point == 'sim.environments:signal_env'\n"
        "assert not {'jax', 'libsumo', 'sumolib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_gymnasium_can_be_told_the_module_instead(grid):
    env = gymnasium.make(f"sim:{registration.ENV_ID}", network=grid.net_file)
    assert env.unwrapped.session.network.ids == grid.ids
