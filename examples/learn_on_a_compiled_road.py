"""Learns prices for the signals of a grid on a compiled road, then drives SUMO with them.

  python examples/learn_on_a_compiled_road.py            about a minute of learning on two cores
  python examples/learn_on_a_compiled_road.py --rounds 2  a first look

The policy is one price for each of the eight phases and one for waiting, the same at all signals. It begins at random
and learns by evolution: in each round every candidate drives the same hours, all at once, and the best ones meet in
the middle. Whether that carries over is for SUMO to say, on an hour that was not learned on.
"""

import argparse
import functools
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from sim.compile_demand import compile_with_demand
from sim.demand import DemandConfig, TripPlanner, trip_rates
from sim.lookahead import LookaheadDriver
from sim.network import GridConfig, build_grid
from sim.session import Scenario, Session
from stream_jax.road.env import Params, World
from stream_jax.road.world import usual_drivers

SIDE = 2  # signals along each side of the grid
VEHICLES_PER_HOUR = 1500.0
MINUTES = 10
CANDIDATES, HOURS, ELITE = 12, 2, 4


def main() -> None:
    """Learns, then compares the prices before and after in SUMO."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of learning")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        network = build_grid(GridConfig(size=SIDE), Path(scratch))
        hour = DemandConfig(warmup_s=120, duration_s=60 * MINUTES)
        planner, city = TripPlanner(network, hour), np.ones((8, SIDE**2))
        rates = trip_rates(city, 2, VEHICLES_PER_HOUR, (), hour)
        compiled, demand = compile_with_demand(network, planner.roads, rates, city[: len(rates)], hour)
        world, params = World(compiled.road), Params(usual_drivers(), demand)
        began = time.perf_counter()
        first, learned = learn(world, params, rounds)
        steps = rounds * CANDIDATES * HOURS * (MINUTES + 2)
        print(f"learned from {steps} control steps in {time.perf_counter() - began:.0f} s")
        test = planner.scenario(99, city, 2, VEHICLES_PER_HOUR, (), Path(scratch))
        for name, prices in {"random prices": first, "learned prices": learned}.items():
            with Session(network, LookaheadDriver()) as road:
                told = drive(road, test, np.tile(prices, (SIDE**2, 1)))
            print(
                f"{name:15s} in SUMO: mean queue {told['mean_queue']:5.2f}  "
                f"longest wait {told['longest_wait_s']:4.0f} s  travel time {told['mean_travel_time_s']:4.0f} s"
            )


def learn(world: World, params: Params, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Prices [9] before and after learning."""
    rng = np.random.default_rng(0)
    first = rng.uniform(-1.0, 1.0, 9)
    mean, spread = first, np.full(9, 0.5)
    for number in range(rounds):
        candidates = np.clip(mean + spread * rng.standard_normal((CANDIDATES, 9)), -1.0, 1.0)
        keys = jax.random.split(jax.random.key(number), HOURS)  # the same hours for all candidates
        score = np.asarray(queues(world, params, jnp.asarray(candidates, jnp.float32), keys))
        best = candidates[np.argsort(score)[:ELITE]]
        mean, spread = best.mean(0), 0.5 * spread + 0.5 * best.std(0)
        print(f"round {number + 1:2d}: mean queue {score.min():5.2f} (best) to {score.max():5.2f}")
    return first, mean


@functools.partial(jax.jit, static_argnums=0)
def queues(world: World, params: Params, candidates: Array, keys: Array) -> Array:
    """[candidates] mean queue of each, over the hours."""

    def one(prices: Array, key: Array) -> Array:
        action = jnp.broadcast_to(prices, (SIDE**2, 9))

        def step(state: object, drawn: Array) -> tuple:
            state, measured = world.step(drawn, state, action, params)
            return state, measured.queue.sum(-1).mean()

        return jax.lax.scan(step, world.reset(key, params), jax.random.split(key, MINUTES + 2))[1].mean()

    return jax.vmap(jax.vmap(one, (None, 0)), (0, None))(candidates, keys).mean(1)


def drive(road: Session, scenario: Scenario, prices: np.ndarray) -> dict[str, float]:
    """One hour in SUMO; returns what happened."""
    road.reset(scenario, warm_up=False)
    while not road.done:
        road.step(prices)
    return road.totals()


if __name__ == "__main__":
    main()
