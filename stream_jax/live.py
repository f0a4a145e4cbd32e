"""A trained system at work: a road and the compiled tick by turns.

The road is handed in. It can be `sim.session.Session`, which drives SUMO, or anything else that has its four members.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax import pipeline
from stream_jax.checkpoint import System
from stream_jax.rl.state import advance_clock, make_state
from stream_jax.task import Limits, constraint_values, physical_state
from stream_jax.types import Certificate, CityView, ForecastData, RoadMeasurement

CONTROL_S = 60  # length of a control step
SOURCES = ("policy", "projected", "previous", "default", "longest queue", "least excess")
Decide = Callable[[int, RoadMeasurement], tuple]  # minute, road -> action, view, certificate, anomalous cells


class Road(Protocol):
    """What is driven, a control step at a time."""

    @property
    def done(self) -> bool:
        """Whether the episode is over."""
        ...

    def reset(self, scenario: Any) -> RoadMeasurement:
        """Begins an episode; what the road shows before the first action."""
        ...

    def step(self, action: np.ndarray) -> RoadMeasurement:
        """Executes an action [I, A]; what the road shows a control step later."""
        ...


class City(NamedTuple):
    """The recording that plays the city's sensors, and when the episode begins."""

    data: ForecastData
    bin_s: int  # length of a step of the recording
    first_step: int  # of the recording, in which the episode begins


class LiveTick(NamedTuple):
    """One control step as it happened."""

    minute: int
    road: RoadMeasurement  # before the action
    x: np.ndarray  # [I, 10]
    view: CityView
    action: np.ndarray  # [I, A]
    certificate: Certificate
    rejected: int  # cells of the city that are anomalous
    after: RoadMeasurement


def drive(road: Road, scenario: Any, decide: Decide) -> Iterator[LiveTick]:
    """Drives one episode.

    Args:
        scenario: what `road.reset` takes.
        decide: from `with_city` or `without_city`.
    """
    seen, minute = road.reset(scenario), 0
    while not road.done:
        action, view, certificate, rejected = decide(minute, seen)
        after = road.step(np.asarray(action))
        x = np.asarray(physical_state(jax.tree.map(jnp.asarray, seen)))
        yield LiveTick(minute, seen, x, view, np.asarray(action), certificate, rejected, after)
        seen, minute = after, minute + CONTROL_S // 60


def with_city(system: System, city: City, neighbours: np.ndarray, seed: int = 0) -> Decide:
    """Decides with forecasts and detections of the steps that have passed.

    Args:
        neighbours: [I, K] of each signal, -1 for none.
    """
    data = jax.tree.map(jnp.asarray, city.data)
    tables, cfg = pipeline.city_tables(data.graph), system.config
    act_fn = pipeline.controller(jnp.asarray(adjacency(neighbours)), cfg.agent)
    tick = jax.jit(lambda state, seen: pipeline.tick(system.params, tables, state, seen, cfg, act_fn))
    before = city.first_step - 1
    state = pipeline.start(jax.random.key(seed), system.params, system.conformal, data, before, cfg)
    clock = np.append(np.asarray(data.series.clock)[city.first_step], 0.0).astype(np.float32)
    per_step = city.bin_s // CONTROL_S

    def decide(minute: int, road: RoadMeasurement) -> tuple:
        nonlocal state, clock
        latest = pipeline.CityObservation(*jax.tree.map(lambda leaf: leaf[before + minute // per_step], data.series))
        arrived = jnp.array(minute > 0 and minute % per_step == 0)
        seen = pipeline.Observation(jax.tree.map(jnp.asarray, road), latest, arrived, jnp.asarray(clock))
        state, action, info = tick(state, seen)
        clock = np.asarray(_next_clock(clock, city.bin_s))
        return action, info.view, info.certificate, int(info.detection.rejected.sum())

    return decide


def without_city(system: System, neighbours: np.ndarray) -> Decide:
    """Decides by the road alone: the view says that everything is as usual. Args: neighbours as in `with_city`."""
    count, cfg = len(neighbours), system.config
    flow = jnp.ones((count, cfg.forecaster.horizon))
    view = CityView(flow, 0.0 * flow, jnp.ones(count), jnp.zeros(count))
    act_fn = pipeline.controller(jnp.asarray(adjacency(neighbours)), cfg.agent)
    previous, clock = jnp.zeros((count, cfg.agent.action.size)), jnp.zeros(5).at[1].set(1.0).at[3].set(1.0)

    @jax.jit
    def step(road: RoadMeasurement, previous: Array, clock: Array) -> tuple:
        state = make_state(physical_state(road), view, previous, clock, cfg.agent.state)
        action, certificate = act_fn(system.params.agent, state, previous, jax.random.key(0))
        return action, certificate, advance_clock(clock, float(CONTROL_S), 900.0)

    def decide(_: int, road: RoadMeasurement) -> tuple:
        nonlocal previous, clock
        previous, certificate, clock = step(jax.tree.map(jnp.asarray, road), previous, clock)
        return previous, view, certificate, 0

    return decide


def adjacency(neighbours: np.ndarray) -> np.ndarray:
    """Row-normalised neighbourhood of the signals, [I, I]; a signal without neighbours has a row of zeros."""
    linked = np.zeros((len(neighbours), len(neighbours)), np.float32)
    for row, others in enumerate(neighbours):
        linked[row, others[others >= 0]] = 1.0
    return linked / np.maximum(linked.sum(1, keepdims=True), 1.0)


def describe(tick: LiveTick) -> str:
    """One line for a person."""
    limits = Limits()  # for the names: values do not depend on them
    values = constraint_values(jnp.asarray(tick.x), limits)
    road = "  ".join(one.constraint.text.format(float(values[one.name])) for one in limits.bounds)
    mark = "certified" if bool(tick.certificate.certified) else "UNCERTIFIED"
    mean, sigma = np.asarray(tick.view.mean)[:, 0].mean(), np.asarray(tick.view.sigma)[:, 0].mean()
    return (
        f"{tick.minute:3d} min  {road}  "
        f"forecast {mean:4.2f} ± {sigma:4.2f}  anomalous cells {tick.rejected:2d}  "
        f"action {np.abs(tick.action).mean():.2f} from {SOURCES[int(tick.certificate.source)]:<13}  {mark}"
    )


_next_clock = jax.jit(lambda clock, bin_s: advance_clock(clock, float(CONTROL_S), bin_s))
