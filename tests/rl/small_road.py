"""Three intersections in a row whose queues follow a rule, for tests of what is learned and promised about a road."""

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.state import advance_clock
from stream_jax.rl.world_network import WorldConfig
from stream_jax.types import RLState, Transition

INTERSECTIONS, HORIZON = 3, 4
INPUTS = 2 * (2 * HORIZON + 26) + 18
ADJACENCY = jnp.array([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])
WORLD = WorldConfig(members=5, hidden=16, layers=2, horizon=6, held_out_block=5)


def random_state(key: Array) -> RLState:
    """A state with every field at random."""
    keys = jax.random.split(key, 7)
    shape = (INTERSECTIONS, HORIZON)
    return RLState(
        local=jax.random.uniform(keys[0], (INTERSECTIONS, 10)),
        mean=1.0 + 0.3 * jax.random.normal(keys[1], shape),
        sigma=0.1 + 0.1 * jax.random.uniform(keys[2], shape),
        p_value=jax.random.uniform(keys[3], (INTERSECTIONS,), minval=1e-3),
        anomalous=jax.random.bernoulli(keys[4], 0.3, (INTERSECTIONS,)).astype(jnp.float32),
        plan=jax.random.uniform(keys[5], (INTERSECTIONS, 9), minval=-1.0, maxval=1.0),
        clock=jnp.array([0.0, 1.0, 0.0, 1.0, 0.0]),
    )


def road_step(key: Array, state: RLState, action: Array) -> RLState:
    """Queues gain the forecast flow and a tenth of the neighbours' queues, and lose what the greens let through."""
    queue = state.local[:, :8]
    noise = 0.02 * jax.random.normal(key, queue.shape)
    grown = queue + 0.1 * state.mean[:, :1] + 0.1 * ADJACENCY @ queue + noise
    queue = jnp.maximum(grown * (0.7 - 0.2 * action[:, :8]), 0.0)
    wait = 0.5 * state.local[:, 8:9] + 0.5 * queue.max(axis=1, keepdims=True)
    unserved = jnp.clip(queue.mean(axis=1, keepdims=True), 0.0, 1.0)
    local = jnp.concatenate([queue, wait, unserved], axis=1)
    return state._replace(local=local, plan=action, clock=advance_clock(state.clock, 60.0, 900.0))


def recording(key: Array, num: int) -> Transition:
    """One episode under random actions, leaves [num, ...]."""
    start_key, scan_key = jax.random.split(key)

    def step(state: RLState, step_key: Array) -> tuple[RLState, Transition]:
        action_key, noise_key, mean_key = jax.random.split(step_key, 3)
        action = jax.random.uniform(action_key, (INTERSECTIONS, 9), minval=-1.0, maxval=1.0)
        following = road_step(noise_key, state, action)
        following = following._replace(mean=jnp.exp(0.3 * jax.random.normal(mean_key, state.mean.shape)))
        return following, Transition(state, action, action, jnp.zeros(()), jnp.zeros(3), following, jnp.ones(()))

    return jax.jit(lambda: jax.lax.scan(step, random_state(start_key), jax.random.split(scan_key, num))[1])()
