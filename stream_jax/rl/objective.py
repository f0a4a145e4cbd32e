"""What each intersection is paid and charged for a step, as a function of the states alone.

Section 4.3, "Anomaly-Aware Reward" (Eq. reward), corrected (docs/errata.md): the traffic part has units, the p-value
term is a potential, which cannot be farmed and vanishes under the null, and violations are charged by the Lagrangian.
Real and imagined steps go through the same function.

An action moves its own intersection and those next to it, while reward and costs belong to the whole network. Each
intersection is therefore credited with what happens in its neighbourhood only: far intersections are noise to it.
"""

import dataclasses
from typing import Literal

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.rl.state import physical
from stream_jax.task import Limits, costs, local_of
from stream_jax.types import RLState

SMALL_P = 0.1  # p-values above it are unremarkable
MOST = 3.0  # times its share that one intersection can have in a constraint of the network


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """Weights of the reward; the paper gives none."""

    served: float = 1.0  # share of the arrivals that was served
    queue: float = 0.5  # per 10 halting vehicles at the intersection
    delay: float = 0.5  # per 120 s of its longest wait
    anomaly: float = 0.1  # lambda_p; 0 leaves the term out
    anomaly_term: Literal["potential", "paper"] = "potential"  # "paper" is p_after - p_before, noise under the null
    uncertainty: float = 0.05  # lambda_sigma, on the standardised sigma; 0 leaves the term out
    violation: float = 0.0  # the paper's lambda_C; the Lagrangian and the filter already answer for violations
    soft_lyapunov: float = 0.0  # per unit of unmet decrease: the ablation "soft Lyapunov" has 0.1 and 1
    correction: float = 0.01  # per squared distance between what was proposed and what the filter let through
    discount: float = 0.99
    neighbourhood: bool = True  # else every intersection is credited with the mean of the network
    # A gridlock, from which no plan recovers, must not drown what can be learned elsewhere, and a limit broken by a
    # tenth must be noticed: learning sees tanh(sharpness * cost) and clip * tanh(reward / clip). 0 leaves them as is.
    cost_sharpness: float = 0.0
    reward_clip: float = 0.0  # in standard deviations


def traffic(x: Array, cfg: RewardConfig) -> Array:
    """[I] served - queue - delay of the physical state [I, 10] that a step led to."""
    queue, wait, unserved = local_of(x)
    return cfg.served * (1.0 - unserved) - cfg.queue * queue.sum(-1) - cfg.delay * wait


def potential(state: RLState) -> Array:
    """Phi [I]: 1 where nothing is remarkable, towards 0 as the p-value of the surroundings gets small."""
    return jnp.minimum(state.p_value, SMALL_P) / SMALL_P


def anomaly_reward(state: RLState, next_state: RLState, cfg: RewardConfig) -> Array:
    """[I] gamma Phi(s') - Phi(s), whose discounted sum telescopes; or the paper's p_after - p_before."""
    if cfg.anomaly_term == "paper":
        return next_state.p_value - state.p_value
    return cfg.discount * potential(next_state) - potential(state)


def local_rewards(
    state: RLState,
    next_state: RLState,
    moved: Array,
    excess: Array,
    sigma_unit: Array,
    limits: Limits,
    cfg: RewardConfig,
) -> Array:
    """[I] reward of each intersection alone; their mean is the reward of the network.

    Args:
        moved: [I, A] proposed minus executed action.
        excess: [] by how much the decrease condition failed.
        sigma_unit: [2] typical mean and standard deviation of the forecast's sigma.
    """
    sigma = (state.sigma.mean(-1) - sigma_unit[0]) / sigma_unit[1]
    # Left out, not multiplied by 0: where a gradient is taken, that of the longest wait may be 0 / 0 in compiled code.
    violated = costs(physical(next_state), limits).sum() if cfg.violation > 0 else 0.0
    return (
        traffic(physical(next_state), cfg)
        + cfg.anomaly * anomaly_reward(state, next_state, cfg)
        - cfg.uncertainty * sigma
        - cfg.violation * violated
        - cfg.soft_lyapunov * excess
        - cfg.correction * jnp.square(moved).sum(-1)
    )


def local_costs(x: Array, limits: Limits, cfg: RewardConfig) -> Array:
    """[I, C] what each intersection is charged for every constraint at x [I, 10].

    It is the network's cost as learning sees it, divided by what each intersection has of what breaks the limit:
    queues, waits beyond the limit, arrivals not served. An intersection without any is charged nothing. The mean over
    intersections is the network's cost.
    """
    chex.assert_rank(x, 2)
    local = local_of(x)
    part = jnp.stack([bound.constraint.share(local, bound.limit) for bound in limits.bounds], axis=-1)
    total = part.sum(axis=0)
    shared = part / jnp.where(total > 0, total, 1.0)
    return x.shape[0] * shared * saturated(costs(x, limits), cfg)


def broken(x: Array, limits: Limits) -> Array:
    """[I, C] bool: which limits are broken, a local one where it is broken, the others by the network as a whole."""
    local, network = local_of(x), costs(x, limits) > 0
    each = [
        bound.constraint.amount(local) > bound.constraint.room(bound.limit)
        if bound.constraint.is_local
        else jnp.broadcast_to(network[place], x.shape[:1])
        for place, bound in enumerate(limits.bounds)
    ]
    return jnp.stack(each, axis=-1)


def nearness(x: Array, limits: Limits, power: float = 8.0) -> Array:
    """[I, C] each intersection's part in how near every limit is at x [I, 10]: 1 at the limit and beyond it.

    High powers of value over limit: what is far from a limit hardly counts, and long before it breaks it does. A limit
    of the whole network gives each intersection its share of the network's nearness.
    """
    local = local_of(x)
    own = jnp.stack([one.constraint.amount(local) / one.constraint.room(one.limit) for one in limits.bounds], axis=-1)
    network = jnp.minimum(own.mean(axis=0), 1.0)
    part = jnp.minimum(own, MOST) * network ** (power - 1.0)
    for place, bound in enumerate(limits.bounds):
        if bound.constraint.is_local:
            part = part.at[:, place].set(jnp.minimum(own[:, place], 1.0) ** power)
    return part


def saturated(cost: Array, cfg: RewardConfig) -> Array:
    """Costs as learning sees them."""
    return jnp.tanh(cfg.cost_sharpness * cost) if cfg.cost_sharpness > 0 else cost


def share(signals: Array, adjacency: Array) -> Array:
    """Credits signals [I, ...] to the intersections that may have caused them.

    The sum over an intersection and its neighbours, divided by the largest number of those: an effect counts the same
    wherever it happens.
    """
    near = (adjacency > 0) | jnp.eye(adjacency.shape[0], dtype=bool)  # [I, I]
    near = near.astype(signals.dtype)
    return jnp.tensordot(near, signals, 1) / near.sum(-1).max()


def credited(reward: Array, x_next: Array, adjacency: Array, limits: Limits, cfg: RewardConfig) -> Array:
    """[I, 1 + C] what each intersection's action is judged by: the reward [I] and the costs of where it led."""
    if cfg.reward_clip > 0:
        reward = cfg.reward_clip * jnp.tanh(reward / cfg.reward_clip)
    if cfg.neighbourhood:
        charged = local_costs(x_next, limits, cfg)
        return share(jnp.concatenate([reward[:, None], charged], axis=-1), adjacency)
    network = jnp.append(reward.mean(), saturated(costs(x_next, limits), cfg))
    return jnp.broadcast_to(network, (reward.shape[0], network.shape[0]))
