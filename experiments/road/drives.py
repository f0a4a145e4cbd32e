"""The same hours under the same controllers in SUMO and on a compiled road."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console

from experiments.evaluation.drives import Method, evaluate, open_session
from experiments.road.controllers import CONTROLLERS, controller, driver
from experiments.road.places import Place
from sim.compile_road import Compiled, hour_of, joined
from sim.network import Network
from sim.session import Scenario
from stream_jax.road.env import World
from stream_jax.road.plans import PlanConfig, plan
from stream_jax.road.world import Drivers, Hour, WorldConfig
from stream_jax.task import Limits, costs, physical_state
from stream_jax.types import RoadMeasurement

CONTROL_S = 60


class Course(NamedTuple):
    """What an hour showed, step by step after the warm-up."""

    queue: np.ndarray  # [hours, T] halting vehicles per intersection
    wait: np.ndarray  # [hours, T] longest wait, s
    served: np.ndarray  # [hours, T] vehicles
    present: np.ndarray  # [hours, T] vehicle-seconds in the network, waiting to enter included
    is_safe: np.ndarray  # [hours]


def in_sumo(place: Place, level: str, name: str, folder: Path, workers: int, console: Console | None = None) -> Course:
    """Drives what is not on disk yet, and reads all."""
    make = functools.partial(driver, name, "nema" if place.name.startswith("grid") else "own")
    method = Method(name, functools.partial(open_session, place.network, make))
    episodes = evaluate(method, place.hours[level], folder / "episodes" / place.name / level / name, workers, console)
    roads = [RoadMeasurement(*(field[1:] for field in episode.road)) for episode in episodes]
    return course(RoadMeasurement(*(np.stack(field) for field in zip(*roads, strict=True))), place.limits[level])


def course(road: RoadMeasurement, limits: Limits) -> Course:
    """Args: road: fields [hours, T, ...]."""
    x = jax.vmap(jax.vmap(physical_state))(jax.tree.map(jnp.asarray, road))
    is_safe = ~(np.asarray(costs(x, limits)) > 0).any((1, 2))
    return Course(
        np.asarray(road.queue.sum(-1).mean(-1)),
        np.asarray(road.wait.max(-1)),
        np.asarray(road.served.sum(-1)),
        np.asarray(road.travel_time),
        is_safe,
    )


class Replay:
    """A compiled road under any of the controllers, over several hours at once; programs are kept between calls."""

    def __init__(self, compiled: Compiled, cfg: WorldConfig | None = None) -> None:
        self.road, self.cfg = compiled.road, cfg or WorldConfig()
        self._programs: dict[object, Callable] = {}

    def __call__(self, name: str, hours: Hour, drivers: Drivers, warmup_s: int, duration_s: int) -> RoadMeasurement:
        """What the hours showed after the warm-up, fields [hours, T, ...]; drivers may have a first axis in front."""
        entry, steps = CONTROLLERS[name], (warmup_s + duration_s) // CONTROL_S
        is_many = jnp.ndim(drivers.startup_s) > 0
        kind = entry.cfg if entry.plan is None else PlanConfig
        program = self._programs.get((kind, steps, is_many))
        if program is None:
            one = functools.partial(self._hour, entry.cfg if entry.plan is None else None, steps)
            many = jax.vmap(one, (None, None, 0, None, 0))
            program = jax.jit(jax.vmap(many, (None, None, None, 0, None)) if is_many else many)
            self._programs[kind, steps, is_many] = program
        prices = jnp.broadcast_to(jnp.asarray(entry.prices, jnp.float32), (self.road.turn.shape[0], len(entry.prices)))
        numbers = jax.tree.map(jnp.asarray, entry.plan or PlanConfig())
        keys = jax.random.split(jax.random.key(0), hours.depart.shape[0])
        measured = program(prices, numbers, keys, drivers, hours)
        return _after(measured, warmup_s // CONTROL_S, 2 if is_many else 1)

    def _hour(
        self, cfg: object, steps: int, prices: Array, numbers: PlanConfig, key: Array, drivers: Drivers, hour: Hour
    ) -> RoadMeasurement:
        decides = controller(CONTROLLERS["look_ahead"]._replace(cfg=cfg)) if cfg is not None else plan(numbers)
        world = World(self.road, self.cfg, decides)

        def one(state: object, drawn: Array) -> tuple:
            return world.drive(drawn, state, prices, drivers)

        return jax.lax.scan(one, world.begin(hour), jax.random.split(key, steps))[1]


def _after(measured: RoadMeasurement, steps: int, axis: int) -> RoadMeasurement:
    """Without the warm-up, as numpy arrays."""
    return jax.tree.map(lambda field: np.asarray(field)[(slice(None),) * axis + (slice(steps, None),)], measured)


def hours_of(compiled: Compiled, network: Network, scenarios: Sequence[Scenario]) -> Hour:
    """Scenarios as one batch."""
    return joined([hour_of(compiled, network, scenario) for scenario in scenarios])
