"""The controller's augmented state, its rows for the networks, and the physical part x = phi(s) that safety looks at.

Section 4.3, "State Augmentation with Upstream Uncertainty". The paper's Lyapunov function and world model take all of
s; clock, forecasts and p-values are not controllable, so here both speak about x only: queues, waits, share not served.
"""

import dataclasses

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.task import LOCAL
from stream_jax.types import CityView, RLState

CLOCK = 5
SMALLEST_P = 1e-4  # p-values below it look the same to the networks
DAY_S = 86_400.0


@dataclasses.dataclass(frozen=True)
class StateConfig:
    """Which signals of the city the controller sees; one left out is held constant, so shapes stay."""

    use_uncertainty: bool = True  # else sigma is 0
    use_anomaly: bool = True  # else every p-value is 1 and no flag is raised


def make_state(x: Array, view: CityView, plan: Array, clock: Array, cfg: StateConfig) -> RLState:
    """Puts road and city together. Args: x [I, 10], plan [I, A] the action in force, clock [5]."""
    num = x.shape[0]
    chex.assert_shape([x, plan, clock], [(num, LOCAL), (num, None), (CLOCK,)])
    return RLState(
        local=x,
        mean=view.mean,
        sigma=view.sigma if cfg.use_uncertainty else jnp.zeros_like(view.sigma),
        p_value=view.p_value if cfg.use_anomaly else jnp.ones_like(view.p_value),
        anomalous=view.anomalous if cfg.use_anomaly else jnp.zeros_like(view.anomalous),
        plan=plan,
        clock=clock,
    )


def physical(state: RLState) -> Array:
    """x = phi(s), [I, 10]."""
    return state.local


def clip_physical(x: Array) -> Array:
    """The nearest state that a road can have: nothing below 0 and at most everything not served."""
    chex.assert_axis_dimension(x, -1, LOCAL)
    upper = jnp.concatenate([jnp.full(LOCAL - 1, jnp.inf), jnp.ones(1)])  # the share not served is last
    return jnp.clip(x, 0.0, upper)


def features(state: RLState) -> Array:
    """One row per intersection, [I, 2 H + 17 + A]: x, mean, sigma, surprise, flag, plan, clock.

    Surprise is -log10 p, between 0 and 1 in units of its largest value: a small p-value should stand out.
    """
    surprise = jnp.log10(jnp.clip(state.p_value, SMALLEST_P, 1.0)) / jnp.log10(SMALLEST_P)
    clock = jnp.broadcast_to(state.clock, (state.local.shape[0], CLOCK))
    flags = jnp.stack([surprise, state.anomalous], axis=-1)  # [I, 2]
    return jnp.concatenate([state.local, state.mean, state.sigma, flags, state.plan, clock], axis=-1)


def with_neighbours(rows: Array, adjacency: Array) -> Array:
    """Every row followed by its neighbours' mean row: [I, F] -> [I, 2 F]. Args: adjacency [I, I] row-normalised."""
    chex.assert_shape(adjacency, (rows.shape[0], rows.shape[0]))
    return jnp.concatenate([rows, adjacency @ rows], axis=-1)


def advance_clock(clock: Array, control_s: float, forecast_s: float) -> Array:
    """The clock one control step later: its angles turn, the share of the forecast step grows and starts again at 1."""
    turned = [_turn(clock[:2], control_s / DAY_S), _turn(clock[2:4], control_s / (7.0 * DAY_S))]
    step = control_s / forecast_s
    share = clock[4] + step
    # Half a step of slack, so that rounding cannot leave a share of 0.9999999 where a new step begins.
    share = jnp.where(share > 1.0 - 0.5 * step, jnp.maximum(share - 1.0, 0.0), share)
    return jnp.concatenate([*turned, share[None]])


def _turn(sine_cosine: Array, share_of_circle: float) -> Array:
    angle = 2.0 * jnp.pi * share_of_circle
    sine, cosine = sine_cosine
    return jnp.stack([sine * jnp.cos(angle) + cosine * jnp.sin(angle), cosine * jnp.cos(angle) - sine * jnp.sin(angle)])
