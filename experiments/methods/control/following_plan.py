"""What is tried against the default plan, and nothing learned: shorter greens that follow queues, a later guard.

What LyCon-WRL+ has beyond it came from its iterations, its filter and what the city says.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluation import drives
from experiments.methods.control import default_plan
from experiments.methods.method import Method
from sim.city_road import CityRoad
from sim.loop import Tick
from stream_jax import store
from stream_jax.rl import trial
from stream_jax.rl.agent import AgentConfig, blank_state
from stream_jax.rl.reaction import terms
from stream_jax.task import physical_state
from stream_jax.types import RLState, RoadMeasurement


def version() -> str:
    """Changes with the plan."""
    return store.key("plan", trial.following_gains())


def step_fn(tick: Tick) -> np.ndarray:
    """Actions [E, I, 9] of all environments."""
    return np.asarray(_actions(jax.tree.map(jnp.asarray, tick.road)))


def plan(state: RLState) -> jax.Array:
    """[I, 9] inside (-1, 1)."""
    return jnp.tanh(terms(state) @ trial.following_gains())


@jax.jit
def _actions(road: RoadMeasurement) -> jax.Array:
    def one(measured: RoadMeasurement) -> jax.Array:
        x = physical_state(measured)
        state = blank_state(x.shape[0], AgentConfig())  # its gains do not hear the city
        return plan(state._replace(local=x))

    return jax.vmap(one)(road)


def make(name: str, road: CityRoad, vehicles_per_hour: float, folder: Path) -> drives.Method:
    """The default controller, told what to do at every control step."""
    followed = drives.without_learning(name, road.network, default_plan.driver)
    return followed._replace(step_fn=step_fn, version=version())


METHOD = Method("following_plan", make=make)
