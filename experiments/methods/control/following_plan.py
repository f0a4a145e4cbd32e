"""What is tried against the default plan, and nothing learned: shorter greens that follow queues, a later guard.

What LyCon-WRL+ has beyond it came from its iterations, its filter and what the city says.
"""

import jax
import jax.numpy as jnp
import numpy as np

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
