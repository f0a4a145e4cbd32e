"""A road small enough to solve by hand: queues that share one green, and a plan that is better than the default.

Each of 4 intersections in a square lets CAPACITY vehicles through per step, shared over its phases like softmax(2 a).
Phases 2 and 6 get 6 vehicles a step, the others 1. Equal shares (the zero action) serve 3.75 of the 6, so the busy
queues grow; with a = .5 on busy and -.5 on quiet phases the shares are e / (2 e + 6 / e) = .36, which is 10.7 vehicles,
and .05, which is 1.4: queues stay short.
"""

import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.rl.episodes import Episode
from stream_jax.task import physical_state
from stream_jax.types import CityView, RoadMeasurement

INTERSECTIONS, HORIZON, STEPS = 4, 2, 12
CAPACITY = 30.0
ARRIVALS = jnp.array([1.0, 6.0, 1.0, 1.0, 1.0, 6.0, 1.0, 1.0])
ADJACENCY = jnp.array([[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]) / 2.0
BETTER = jnp.full((INTERSECTIONS, 9), -0.5).at[:, jnp.array([1, 5])].set(0.5)


def step(key, queue, action):
    """One control step: queues [I, 8] and action [I, 9] to the next queues and the measurement."""
    share = jax.nn.softmax(2.0 * action[:, :8], axis=-1)
    arrived = jax.random.poisson(key, ARRIVALS, queue.shape).astype(jnp.float32)
    served = jnp.minimum(queue + arrived, CAPACITY * share)
    left = jnp.minimum(queue + arrived - served, 40.0)
    zero = jnp.zeros(())
    totals = served.sum(-1), arrived.sum(-1)
    measured = RoadMeasurement(left, 20.0 + 4.0 * left.max(-1), *totals, *totals, left.sum(), zero, zero)
    return left, measured


def view():
    """Nothing to see in this city."""
    flat = jnp.ones((INTERSECTIONS, HORIZON))
    return CityView(flat, 0.1 * flat, jnp.ones(INTERSECTIONS), jnp.zeros(INTERSECTIONS))


_step = jax.jit(jax.vmap(step))
_seen = jax.jit(jax.vmap(physical_state))


def collect(policy_step, num_episodes, seed, actions=9):
    """Episodes of STEPS steps, all stepped at once; episode e belongs to seed + e, entries after 8 do nothing."""
    seeds = np.arange(seed, seed + num_episodes)
    keys = jax.vmap(jax.random.key)(seeds)
    queue = 2.0 * jax.vmap(lambda key: jax.random.uniform(key, (INTERSECTIONS, 8)))(keys)
    batch = lambda tree: jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_episodes, *leaf.shape)), tree)  # noqa: E731
    views, clock, plan = batch(view()), batch(jnp.zeros(5)), batch(jnp.zeros((INTERSECTIONS, actions)))
    _, road = _step(keys, queue, plan)
    moments, decisions, traffic = [(_seen(road), plan)], [], []
    for time in range(STEPS):
        decision = policy_step(seeds, time, moments[-1][0], views, plan, clock)
        plan = decision.action
        queue, road = _step(jax.vmap(jax.random.fold_in, (0, None))(keys, time), queue, plan)
        moments.append((_seen(road), plan))
        decisions.append(decision)
        traffic.append(-road.queue.sum((1, 2)))
    over_time = lambda trees: jax.tree.map(lambda *leaves: np.stack(leaves, 1), *trees)  # noqa: E731
    (x, plans), decided = over_time(moments), over_time(decisions)
    still = lambda tree: over_time([tree] * (STEPS + 1))  # noqa: E731
    stacked = Episode(
        x,
        still(views),
        still(clock),
        plans,
        decided.proposed,
        decided.log_prob,
        decided.certificate,
        np.stack(traffic, 1),
    )
    return [jax.tree.map(lambda leaf, e=e: leaf[e], stacked) for e in range(num_episodes)]
