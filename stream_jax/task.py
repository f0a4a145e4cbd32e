"""The control task in one place: what signals are told, what is measured, which limits hold and what a step is paid.

Section 4.3 and its appendix "Safety Constraints", corrected (docs/errata.md): the paper adds vehicles, seconds and a
throughput of the wrong sign. Here each violation is relative to its limit. Throughput is the share of the arrivals that
was served, so that little demand is no violation. Exact definitions, for one control step:

- C1 `queue`: halting vehicles per intersection, averaged over the step and over all intersections.
- C2 `wait`: the longest waiting time of any vehicle in the network during the step.
- C3 `served`: of the vehicles that arrived in the last 15 minutes, the share that crossed the stop line (at most 1 for
  each intersection, averaged over intersections).

A fourth constraint is a `Constraint` and a field of a dataclass that extends `Limits`. Another action is an
`ActionSpace`. Everything else counts and names costs, multipliers and action entries by these two.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax.numpy as jnp
from jax import Array

from stream_jax.types import RoadMeasurement

PHASES = 8  # of a NEMA dual ring
QUEUE_UNIT = 10.0  # vehicles
WAIT_UNIT = 120.0  # seconds
SERVED_UNIT = 30.0  # vehicles that an intersection lets through in a busy minute
PRESENT_UNIT = 30.0  # vehicles on the road or waiting to enter, per intersection
QUEUE_WEIGHT = 0.5  # of the traffic reward
DELAY_WEIGHT = 0.5


@dataclasses.dataclass(frozen=True)
class ActionPart:
    """Consecutive entries of an action that mean the same for each phase, or one entry for the intersection."""

    name: str
    entries: int


@dataclasses.dataclass(frozen=True)
class ActionSpace:
    """What one intersection is told in a control step: numbers in [-1, 1], where 0 leaves its controller as it is."""

    name: str
    parts: tuple[ActionPart, ...]

    @property
    def size(self) -> int:
        """Number of entries."""
        return sum(part.entries for part in self.parts)

    def place(self, name: str) -> slice:
        """Where a part stands in the last axis of an action. Raises KeyError if there is no such part."""
        first = 0
        for part in self.parts:
            if part.name == name:
                return slice(first, first + part.entries)
            first += part.entries
        raise KeyError(f"the action {self.name!r} has no part {name!r}")


# The look-ahead controller is told what vehicles of each phase and waiting are worth, the actuated NEMA controller how
# long greens and waits may last. What reacts to queues counts on both having entries by phase first, then one more.
PRICES = ActionSpace("prices", (ActionPart("phase", PHASES), ActionPart("waiting", 1)))
GREENS = ActionSpace("greens", (ActionPart("max_green", PHASES), ActionPart("guard", 1)))
SPACES = {space.name: space for space in (PRICES, GREENS)}
ACTIONS = PRICES.size  # 9, as many as `GREENS` has


class Local(NamedTuple):
    """The physical state x with its entries by name; leading axes are those of x."""

    queue: Array  # [..., 8] halting vehicles of each phase / 10
    wait: Array  # [...] longest wait / 120 s
    unserved: Array  # [...] share of the arrivals of the last 15 minutes that was not served


LOCAL = PHASES + 2  # entries of x for one intersection


class Constraint(NamedTuple):
    """How one limit is measured. Functions of `Local` get the state of all intersections, leaves [..., I]."""

    text: str  # the value for a person, with its unit, as a format
    mean_metric: str  # what results rows call the mean of the value over control steps
    max_metric: str | None  # and its maximum; None: not reported
    is_local: bool  # whether each intersection breaks the limit alone; else the network does as a whole
    value: Callable[[Local], Array]  # [...] what is compared with the limit
    excess: Callable[[Array, float], Array]  # value, limit -> relative violation, at most 0 if the limit is kept
    amount: Callable[[Local], Array]  # [..., I] what each intersection has of what the limit is about
    room: Callable[[float], float]  # limit -> the mean (or, if local, the single) amount at which it breaks
    share: Callable[[Local, float], Array]  # [..., I] what a network's violation is divided among intersections by


def _longest_wait(local: Local) -> Array:
    # By index: the gradient of `max` asks which entry equals it, and in compiled code none may, being rounded anew.
    longest = local.wait.argmax(-1, keepdims=True)
    return WAIT_UNIT * jnp.take_along_axis(local.wait, longest, -1)[..., 0]


QUEUE = Constraint(
    text="queue {:5.1f}",
    mean_metric="mean_queue",
    max_metric=None,
    is_local=False,
    value=lambda local: QUEUE_UNIT * local.queue.sum(-1).mean(-1),
    excess=lambda value, limit: value / limit - 1.0,
    amount=lambda local: QUEUE_UNIT * local.queue.sum(-1),
    room=lambda limit: limit,
    share=lambda local, limit: local.queue.sum(-1),
)
WAIT = Constraint(
    text="wait {:4.0f} s",
    mean_metric="wait",
    max_metric="longest_wait",
    is_local=True,
    value=_longest_wait,
    excess=lambda value, limit: value / limit - 1.0,
    amount=lambda local: WAIT_UNIT * local.wait,
    room=lambda limit: limit,
    share=lambda local, limit: jnp.maximum(WAIT_UNIT * local.wait / limit - 1.0, 0.0),
)
SERVED = Constraint(
    text="served {:4.0%}",
    mean_metric="served",
    max_metric=None,
    is_local=False,
    value=lambda local: 1.0 - local.unserved.mean(-1),
    excess=lambda value, limit: 1.0 - value / limit,
    amount=lambda local: local.unserved,
    room=lambda limit: max(1.0 - limit, 1e-3),
    share=lambda local, limit: local.unserved,
)


class Bound(NamedTuple):
    """One constraint with its limit."""

    name: str
    limit: float
    constraint: Constraint


def limit(default: float, constraint: Constraint) -> float:
    """A field of `Limits`: the default limit of a constraint."""
    return dataclasses.field(default=default, metadata={"constraint": constraint})


@dataclasses.dataclass(frozen=True)
class Limits:
    """The paper's limits; its queue limit does not bind on small grids."""

    queue: float = limit(50.0, QUEUE)  # d1, vehicles per intersection
    wait: float = limit(120.0, WAIT)  # d2, seconds
    served: float = limit(0.8, SERVED)  # d3, share of the arrivals

    def __post_init__(self) -> None:
        if not (self.queue > 0 and self.wait > 0 and 0 < self.served <= 1):
            raise ValueError("limits on queue and wait must be positive and the one on served inside (0, 1]")

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """All constraints in the order in which costs are stacked."""
        fields = dataclasses.fields(self)
        return tuple(Bound(one.name, getattr(self, one.name), one.metadata["constraint"]) for one in fields)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the constraints, in the order of costs and multipliers."""
        return tuple(bound.name for bound in self.bounds)


def physical_state(road: RoadMeasurement) -> Array:
    """x [I, 10]: queues / 10 vehicles, longest wait / 120 s, share not served; 0 is the empty road."""
    chex.assert_rank(road.queue, 2)
    served = jnp.minimum(road.served_window / jnp.maximum(road.arrived_window, 1.0), 1.0)
    unserved = jnp.where(road.arrived_window > 0, 1.0 - served, 0.0)
    return jnp.concatenate(
        [road.queue / QUEUE_UNIT, road.wait[:, None] / WAIT_UNIT, unserved[:, None]], axis=-1
    ).astype(jnp.float32)


def local_of(x: Array) -> Local:
    """The entries of x [..., 10] by name."""
    chex.assert_axis_dimension(x, -1, LOCAL)
    return Local(x[..., :PHASES], x[..., PHASES], x[..., PHASES + 1])


def constraint_values(x: Array, limits: Limits) -> dict[str, Array]:
    """What each limit is compared with, by name: vehicles, seconds, a share. Args: x [..., I, 10]."""
    local = local_of(x)
    return {bound.name: bound.constraint.value(local) for bound in limits.bounds}


def costs(x: Array, limits: Limits) -> Array:
    """Violations relative to the limits [..., C], in the order of `limits.names`; 0 where a limit is kept."""
    local = local_of(x)
    over = [one.constraint.excess(one.constraint.value(local), one.limit) for one in limits.bounds]
    return jnp.maximum(jnp.stack(over, axis=-1), 0.0)


def violation(x: Array, limits: Limits) -> Array:
    """d_C(x): the sum of the relative violations."""
    return costs(x, limits).sum(-1)


def is_safe_episode(step_costs: Array) -> Array:
    """Whether no control step violated any limit. Args: step_costs [T, C]."""
    return ~(step_costs > 0).any()


def violating_steps(step_costs: Array) -> Array:
    """Number of control steps with at least one violation. Args: step_costs [T, C]."""
    return (step_costs > 0).any(-1).sum()


def traffic_reward(road: RoadMeasurement, control_s: float = 60.0) -> Array:
    """[] reward of one control step, about -1 (overload) to 1; vmap for more.

    Section 4.3, whose reward has no units. Here it is served - 0.5 queue - 0.5 delay, with each term divided by what a
    busy intersection shows. Delay is the time that vehicles spent in the network per intersection, waiting to enter
    included: at given demand it differs from the time lost by a constant.

    Args:
        control_s: length of the step in seconds.
    """
    chex.assert_rank(road.queue, 2)
    num_signals = road.queue.shape[0]
    served = road.served.mean() * (60.0 / control_s) / SERVED_UNIT
    queue = road.queue.sum(-1).mean() / QUEUE_UNIT
    delay = road.travel_time / (control_s * num_signals) / PRESENT_UNIT
    return (served - QUEUE_WEIGHT * queue - DELAY_WEIGHT * delay).astype(jnp.float32)
