"""The physical state x of the road and the limits C1..C3 that control must keep.

Section 4.3 and its appendix "Safety Constraints", corrected (docs/errata.md): the paper adds vehicles, seconds and a
throughput of the wrong sign; here each violation is relative to its limit, and throughput is the share of what arrived
that was served, so that little demand is no violation.

Exact definitions, for one control step:

- C1: halting vehicles per intersection, averaged over the step and over all intersections, is at most `queue`.
- C2: the longest waiting time of any vehicle in the network during the step is at most `wait` seconds.
- C3: of the vehicles that arrived in the last 15 minutes, the share that crossed the stop line (at most 1 for each
  intersection, averaged over intersections) is at least `served`.
"""

import dataclasses

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.types import RoadMeasurement

PHASES = 8
LOCAL = PHASES + 2  # entries of x for one intersection: queues, longest wait, share not served
QUEUE_UNIT = 10.0  # vehicles
WAIT_UNIT = 120.0  # seconds


@dataclasses.dataclass(frozen=True)
class Limits:
    """The paper's limits; its queue limit does not bind on small grids."""

    queue: float = 50.0  # d1, vehicles per intersection
    wait: float = 120.0  # d2, seconds
    served: float = 0.8  # d3, share of the arrivals

    def __post_init__(self) -> None:
        if not (self.queue > 0 and self.wait > 0 and 0 < self.served <= 1):
            raise ValueError("limits on queue and wait must be positive and the one on served inside (0, 1]")


def physical_state(road: RoadMeasurement) -> Array:
    """x [I, 10]: queues / 10 vehicles, longest wait / 120 s, share not served; 0 is the empty road."""
    chex.assert_rank(road.queue, 2)
    served = jnp.minimum(road.served_window / jnp.maximum(road.arrived_window, 1.0), 1.0)
    unserved = jnp.where(road.arrived_window > 0, 1.0 - served, 0.0)
    return jnp.concatenate(
        [road.queue / QUEUE_UNIT, road.wait[:, None] / WAIT_UNIT, unserved[:, None]], axis=-1
    ).astype(jnp.float32)


def constraint_values(x: Array) -> Array:
    """[3]: mean halting vehicles per intersection, longest wait in s, share served. Args: x [I, 10]."""
    queue = QUEUE_UNIT * x[..., :PHASES].sum(-1).mean(-1)
    # By index: the gradient of `max` asks which entry equals it, and in compiled code none may, being rounded anew.
    waits = x[..., PHASES]
    wait = WAIT_UNIT * jnp.take_along_axis(waits, waits.argmax(-1, keepdims=True), -1)[..., 0]
    served = 1.0 - x[..., PHASES + 1].mean(-1)
    return jnp.stack([queue, wait, served], axis=-1)


def costs(x: Array, limits: Limits) -> Array:
    """Normalised violations of C1, C2 and C3, [3], each 0 where its limit is kept."""
    queue, wait, served = jnp.moveaxis(constraint_values(x), -1, 0)
    over = [queue / limits.queue - 1.0, wait / limits.wait - 1.0, 1.0 - served / limits.served]
    return jnp.maximum(jnp.stack(over, axis=-1), 0.0)


def violation(x: Array, limits: Limits) -> Array:
    """d_C(x): the sum of the normalised violations."""
    return costs(x, limits).sum(-1)


def is_safe_episode(step_costs: Array) -> Array:
    """Whether no control step violated any limit. Args: step_costs [T, 3]."""
    return ~(step_costs > 0).any()


def violating_steps(step_costs: Array) -> Array:
    """Number of control steps with at least one violation. Args: step_costs [T, 3]."""
    return (step_costs > 0).any(-1).sum()
