"""The safety filter: accepts the policy's action, or the nearest one whose predicted step satisfies the condition.

Algorithm "Lyapunov-Safe Action Selection", corrected (docs/errata.md): the violation is that of the predicted state
(d_C(s) has no gradient in the action), every candidate is checked before it is used, and where none is feasible the one
that fails by least is taken and flagged. The paper returns the last iterate unchecked.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.rl import lyapunov, world_model
from stream_jax.rl.lyapunov import LyapunovConfig, LyapunovParams
from stream_jax.rl.state import physical
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import WorldConfig
from stream_jax.task import GREENS, PHASES, Limits, local_of, violation
from stream_jax.types import Certificate, RLState

POLICY, PROJECTED, PREVIOUS, DEFAULT_PLAN, LONGEST_QUEUE, LEAST_EXCESS = range(6)  # Certificate.source
EPS = 1e-12
NextFn = Callable[[Array], Array]  # action [I, A] -> predicted x [I, 10]
ValueFn = Callable[[Array], Array]  # x [I, 10] -> L(x)


@dataclasses.dataclass(frozen=True)
class SafetyConfig:
    """Hard filters; soft and none let the proposal pass and log its certificate, soft for a penalty on the excess."""

    mode: Literal["hard", "soft", "none"] = "hard"
    num_projections: int = 10
    step: float = 0.05  # largest change of an entry of the action per iterate
    violation_weight: float = 1.0  # lambda of the violation against L in the projection's objective
    longest_queue_raise: float = 0.5  # what the longest-queue plan gives the phases that wait most
    # Where nothing is feasible, excesses within so many margins of the least are alike, and what is nearest to the
    # proposal wins: the margin says by how much predictions of L are off. 0 takes the least, however little it differs.
    resolution: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("hard", "soft", "none"):
            raise ValueError(f"mode must be hard, soft or none, not {self.mode!r}")
        if not (self.num_projections >= 1 and self.step > 0 and self.resolution >= 0):
            raise ValueError("num_projections must be at least 1, step positive and resolution not negative")


class FilterParams(NamedTuple):
    """What the filter judges by; both are frozen while a certificate is made."""

    world: WorldParams
    lyapunov: LyapunovParams


class FilterConfigs(NamedTuple):
    """Static settings of the filter and of what it judges by."""

    world: WorldConfig
    lyapunov: LyapunovConfig
    safety: SafetyConfig


def filter_action(
    params: FilterParams,
    state: RLState,
    proposed: Array,
    previous: Array,
    margin: Array | float,
    adjacency: Array,
    limits: Limits,
    cfgs: FilterConfigs,
) -> tuple[Array, Certificate]:
    """The action to execute, [I, A], and its certificate. Args: proposed and previous [I, A]; margin, may be +inf."""
    chex.assert_equal_shape([proposed, previous, state.plan])

    def next_fn(action: Array) -> Array:
        return world_model.mean_next(params.world, state, action, adjacency, cfgs.world)

    value_fn = partial(lyapunov.value, params.lyapunov, cfg=cfgs.lyapunov)
    return choose(next_fn, value_fn, physical(state), proposed, previous, margin, limits, cfgs.lyapunov, cfgs.safety)


def choose(
    next_fn: NextFn,
    value_fn: ValueFn,
    x: Array,
    proposed: Array,
    previous: Array,
    margin: Array | float,
    limits: Limits,
    lyapunov_cfg: LyapunovConfig,
    cfg: SafetyConfig,
) -> tuple[Array, Certificate]:
    """The same for any model of the road and any Lyapunov function."""
    if cfg.mode == "hard":
        candidates, after, source = _candidates(next_fn, value_fn, x, proposed, previous, limits, cfg)
    else:
        candidates, after, source = proposed[None], value_fn(next_fn(proposed))[None], jnp.array([POLICY])
    now, violated = value_fn(x), violation(x, limits)
    # The margin is the same for all, so that leaving it out keeps the ranking finite when the margin is not.
    bare = lyapunov.shortfall(now, after, 0.0, violated, lyapunov_cfg)
    feasible = bare + margin <= 0.0
    distance = ((candidates - proposed) ** 2).sum(axis=(1, 2))
    nearest = jnp.argmin(jnp.where(feasible, distance, jnp.inf))
    # A margin below 0 says that predictions are too high, not that they tell candidates apart; an infinite one times 0
    # would be no number.
    reach = cfg.resolution * jnp.maximum(margin, 0.0) if cfg.resolution else 0.0
    alike = bare <= bare.min() + reach
    chosen = jnp.where(feasible.any(), nearest, jnp.argmin(jnp.where(alike, distance, jnp.inf)))
    # Without a feasible candidate the action counts as the one of least excess, as far as that can be told.
    unfeasible_source = LEAST_EXCESS if cfg.mode == "hard" else POLICY
    certificate = Certificate(
        value=now,
        decrease=now - after[chosen],
        margin=jnp.asarray(margin, now.dtype),
        violation=violated,
        excess=jnp.maximum(bare[chosen] + margin, 0.0),
        certified=feasible[chosen],
        source=jnp.where(feasible.any(), source[chosen], unfeasible_source),
    )
    return candidates[chosen], certificate


def longest_queue_plan(x: Array, amount: float, size: int = GREENS.size) -> Array:
    """Action 0 with more green, or a higher price, for the longest queue of each ring (phases 1-4, 5-8): [I, size]."""
    rings = local_of(x).queue.reshape(-1, 2, PHASES // 2)
    longest = jax.nn.one_hot(rings.argmax(axis=-1), PHASES // 2) * (rings > 0)
    plan = jnp.zeros((x.shape[0], size))
    return plan.at[:, GREENS.place("max_green")].set(amount * longest.reshape(-1, PHASES))


def _candidates(
    next_fn: NextFn, value_fn: ValueFn, x: Array, proposed: Array, previous: Array, limits: Limits, cfg: SafetyConfig
) -> tuple[Array, Array, Array]:
    """All actions considered [J, I, A], L after each [J] and where each comes from [J].

    The proposal is first and wins every tie.
    """

    def objective(action: Array) -> tuple[Array, Array]:
        predicted = next_fn(action)
        after = value_fn(predicted)
        return after + cfg.violation_weight * violation(predicted, limits), after

    def descend(action: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        gradient, after = jax.grad(objective, has_aux=True)(action)
        # Scaled by its largest entry: L is a mean over the grid, whose gradient in one action shrinks with its size.
        step = cfg.step * gradient / jnp.maximum(jnp.abs(gradient).max(), EPS)
        return jnp.clip(action - step, -1.0, 1.0), (action, after)

    last, (iterates, judged) = jax.lax.scan(descend, proposed, None, length=cfg.num_projections)
    served = longest_queue_plan(x, cfg.longest_queue_raise, proposed.shape[-1])
    rest = jnp.stack([last, previous, jnp.zeros_like(proposed), served])
    after = jax.vmap(lambda action: value_fn(next_fn(action)))(rest)
    source = [POLICY] + [PROJECTED] * cfg.num_projections + [PREVIOUS, DEFAULT_PLAN, LONGEST_QUEUE]
    return jnp.concatenate([iterates, rest]), jnp.concatenate([judged, after]), jnp.array(source, jnp.int32)
