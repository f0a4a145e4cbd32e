"""Drives a SUMO network with two signal plans and compares queues and waits.

  python examples/your_sumo_network.py                 the small town beside this script
  python examples/your_sumo_network.py my.net.xml      your network, .net.xml or .net.xml.gz

The town's traffic is drawn at random, the same for both plans.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from sim.demand import DemandConfig, make_scenario
from sim.env import SignalEnv
from sim.errors import RoadError
from sim.nema import NemaController
from sim.network import Network, read_network
from sim.session import Session

TOWN = Path(__file__).parent / "town.net.xml.gz"
MINUTES = 10  # to drive, after five minutes in which the empty road fills
VEHICLES_PER_SIGNAL = 150.0  # vehicles an hour that enter the network, for each of its signals


def drive(network: Network, action: np.ndarray, folder: Path) -> dict[str, float]:
    """One episode under a constant action; returns what happened on the road.

    Args:
        action: [signals, 9] in [-1, 1]: the longest greens of eight phases, then the wait after which a driver gets
            priority. 0 is the default plan. A controller of your own would compute it anew from `observation`.
    """
    city = np.full((8, len(network.ids)), 50.0)  # the same flow around each signal, in each quarter of an hour
    trips = partial(
        make_scenario,
        network=network,
        flow=city,
        first_step=2,
        vehicles_per_hour=VEHICLES_PER_SIGNAL * len(network.ids),
        incidents=[],
        folder=folder,
        cfg=DemandConfig(warmup_s=300, duration_s=60 * MINUTES),
    )
    env = SignalEnv(Session(network, NemaController()), trips)
    try:
        _observation, _ = env.reset(seed=0)  # queues, waits and served shares of all signals, then the action in force
        is_over, rewards = False, []
        while not is_over:
            _observation, reward, _, is_over, _ = env.step(action)
            rewards.append(reward)
        return env.session.totals() | {"mean_reward": float(np.mean(rewards))}
    finally:
        env.close()


def main() -> None:
    """Reads the network, drives it twice and prints both results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", type=Path, nargs="?", default=TOWN, help=".net.xml, .net.xml.gz or .sumocfg")
    args = parser.parse_args()
    try:
        network = read_network(args.network)
        print(f"{len(network.ids)} signals, {int(network.is_nema.sum())} of them with the usual eight phases")
        default = np.zeros((len(network.ids), 9), np.float32)
        shorter = default.copy()
        shorter[:, :8] = -0.5  # halfway, on a log scale, from the default greens to the shortest ones
        with tempfile.TemporaryDirectory() as folder:
            for name, action in {"default plan": default, "shorter greens": shorter}.items():
                told = drive(network, action, Path(folder))
                print(
                    f"{name:15s} mean queue {told['mean_queue']:5.2f}  longest wait {told['longest_wait_s']:4.0f} s  "
                    f"travel time {told['mean_travel_time_s']:4.0f} s  vehicles {told['vehicles']:.0f}"
                )
    except RoadError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
