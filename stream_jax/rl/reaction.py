"""A reaction to queues that treats all phases and intersections alike: a handful of gains, all 0 in the default plan.

Added to what the actor's network says. The network has to find out for each phase by itself that a queue wants green;
here every phase of every intersection tells the same few gains, so that episodes by the dozen are enough to find them.
The guard's terms hear the city too: where demand is going, how sure the forecast is, and whether something is wrong.
"""

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.state import physical
from stream_jax.task import GREENS, PHASES, local_of
from stream_jax.types import RLState

GREEN_TERMS = ("left", "through", "longer", "shorter", "crowded", "longer_crowded", "waited", "busy")
GUARD_TERMS = ("always", "crowded", "waited", "growth", "doubt", "anomaly")
GAINS = len(GREEN_TERMS) + len(GUARD_TERMS)
CROWDED, FULL = 0.6, 1.1  # longest queue of a phase, in 10 vehicles, where an intersection begins to be and is crowded
BUSY, JAMMED = 0.6, 1.1  # queues of an intersection, mean of the network, in 10 vehicles
LONG_WAIT, LIMIT_WAIT = 0.7, 1.0  # in 120 s
SMALL = 0.1  # one vehicle: queues below it are all alike


def terms(state: RLState) -> Array:
    """[I, A, 14]: what each gain adds to each entry of the action; of the order of 1.

    Written for `GREENS`; of `PRICES` the same gains move the price of each phase and that of waiting. Entries that an
    action has beyond these get nothing.
    """
    x = physical(state)
    chex.assert_rank(x, 2)
    queue, wait, _ = local_of(x)
    usual = queue.mean(-1, keepdims=True)
    longer = jnp.clip((queue - usual) / (usual + SMALL), 0.0, 2.0)  # [I, 8]
    shorter = jnp.clip((usual - queue) / (usual + SMALL), 0.0, 1.0)
    crowded = jnp.clip((queue.max(-1) - CROWDED) / (FULL - CROWDED), 0.0, 1.0)  # [I]
    waited = jnp.clip((wait - LONG_WAIT) / (LIMIT_WAIT - LONG_WAIT), 0.0, 1.0)  # [I]
    busy = jnp.clip((queue.sum(-1).mean() - BUSY) / (JAMMED - BUSY), 0.0, 1.0)
    is_left = jnp.broadcast_to(jnp.arange(PHASES) % 2 == 0, queue.shape).astype(queue.dtype)
    alike = [jnp.broadcast_to(signal, queue.shape) for signal in (crowded[:, None], waited[:, None], busy)]
    greens = jnp.stack([is_left, 1.0 - is_left, longer, shorter, alike[0], longer * alike[0], *alike[1:]], axis=-1)
    first, last = state.mean[:, 0], state.mean[:, -1]
    guard = [
        jnp.ones_like(wait),
        crowded,
        waited,
        jnp.clip(last / jnp.maximum(first, SMALL) - 1.0, -1.0, 1.0),
        jnp.clip(state.sigma.mean(-1) / jnp.maximum(state.mean.mean(-1), SMALL), 0.0, 1.0),
        state.anomalous.astype(wait.dtype),
    ]
    table = jnp.zeros((*state.plan.shape, GAINS), queue.dtype)
    table = table.at[:, GREENS.place("max_green"), : len(GREEN_TERMS)].set(greens)
    return table.at[:, GREENS.place("guard"), len(GREEN_TERMS) :].set(jnp.stack(guard, axis=-1)[:, None])
