"""One control tick, from what city and road show to a safe action, as one pure function.

Algorithm 1 of the paper. The city speaks every 15 minutes, the road every control step: `observe_city` detects,
calibrates, forecasts and aggregates when a city step arrives, `tick` acts every time on the latest view. All that is
remembered is in `PipelineState`, so a tick can be compiled once, replayed, and vmapped over environments.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal import intervals
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.flows import context, crfn_by
from stream_jax.flows import streaming as flow_streaming
from stream_jax.flows.crfn_by import Calibration, FlowConfig, FlowParams, Judged
from stream_jax.flows.scale import ScaleConfig
from stream_jax.gnn import attention
from stream_jax.gnn import streaming as forecast_streaming
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.pu_gat_plus import ForecasterParams
from stream_jax.rl.aggregation import AggregationConfig, Aggregator, city_view
from stream_jax.rl.lycon_wrl_plus import Agent, AgentConfig, act
from stream_jax.rl.state import make_state
from stream_jax.task import physical_state
from stream_jax.types import (
    Certificate,
    CityView,
    ConformalState,
    Detection,
    Forecast,
    ForecastData,
    Interval,
    RLState,
    RoadGraph,
    RoadMeasurement,
    TrafficSeries,
)

WARM_UP_DAYS = 4  # after which the scales of the residuals have forgotten where they started
# agent, state, action in force [I, A], key -> action to execute [I, A] and its certificate
ActFn = Callable[[Agent, RLState, Array, Array], tuple[Array, Certificate]]


@dataclasses.dataclass(frozen=True)
class SystemConfig:
    """The rooms' own configs; hashable, hence static when a tick is compiled."""

    forecaster: ForecasterConfig = ForecasterConfig()
    conformal: ConformalConfig = ConformalConfig()
    flow: FlowConfig = FlowConfig()
    scale: ScaleConfig = ScaleConfig()
    aggregation: AggregationConfig = AggregationConfig()
    agent: AgentConfig = AgentConfig()

    def __post_init__(self) -> None:
        if len(self.forecaster.targets) != 1:
            raise ValueError("a pipeline forecasts one feature: give the forecaster one target")
        if self.agent.forecast_horizon != self.forecaster.horizon:
            raise ValueError("agent.forecast_horizon must be the forecaster's horizon")


class SystemParams(NamedTuple):
    """Everything that was learned, for one seed."""

    forecaster: ForecasterParams
    factor: Array  # [H, N] static calibration of the forecast's sigma, for residuals
    flow: FlowParams
    calibration: Calibration  # sorted scores, so that a tick searches and does not sort
    aggregator: Aggregator
    agent: Agent


class CityTables(NamedTuple):
    """The road graph as the padded tables of the two networks that listen along it."""

    forecast: attention.Neighbours
    flow: context.Neighbours


class CityState(NamedTuple):
    """What is remembered of the city from step to step."""

    stream: forecast_streaming.StreamState
    conformal: ConformalState
    residual: flow_streaming.ResidualState


class CityInfo(NamedTuple):
    """What was said about the city at its latest step."""

    forecast: Forecast  # [H, N]
    interval: Interval  # [H, N]
    detection: Detection  # [N], of the step that arrived
    view: CityView


class PipelineState(NamedTuple):
    """Carried between ticks."""

    city: CityState
    latest: CityInfo
    action: Array  # [I, A] in force
    key: Array


class CityObservation(NamedTuple):
    """One step of a `TrafficSeries`."""

    values: Array  # [N, F] physical units
    observed: Array  # [N, F] bool
    clock: Array  # [4]
    slot: Array  # [] int32


class Observation(NamedTuple):
    """What a tick is given. To vmap, leave `arrived` unbatched: one branch is then run, not both."""

    road: RoadMeasurement
    city: CityObservation  # read only when a step arrived
    arrived: Array  # [] bool
    clock: Array  # [5] of the control step, as in `RLState`


class TickInfo(NamedTuple):
    """Everything worth logging."""

    forecast: Forecast
    interval: Interval
    detection: Detection
    view: CityView
    rl_state: RLState
    certificate: Certificate


def city_tables(graph: RoadGraph) -> CityTables:
    """Built once, on the host."""
    return CityTables(attention.neighbour_table(graph), context.neighbour_table(graph))


def controller(adjacency: Array, cfg: AgentConfig) -> ActFn:
    """The trained agent's act function: what it means to do, filtered. Args: adjacency [I, I] row-normalised."""

    def act_fn(agent: Agent, rl_state: RLState, previous: Array, key: Array) -> tuple[Array, Certificate]:
        decision = act(key, agent, rl_state, previous, adjacency, cfg, explore=False)
        return decision.action, decision.certificate

    return act_fn


def start(
    key: Array,
    params: SystemParams,
    conformal: ConformalState,
    data: ForecastData,
    origin: int,
    cfg: SystemConfig,
) -> PipelineState:
    """The state after step `origin` of a recording, with the default plan in force.

    The detector follows up to four days before the origin, which it needs for its scales; `conformal`, as calibrated on
    earlier data, meets its first step at the origin.
    """
    reach = WARM_UP_DAYS * cfg.forecaster.profile.steps_per_day
    first = max(cfg.forecaster.history, origin - reach)
    needed = cfg.forecaster.history + cfg.flow.context.lags + cfg.forecaster.horizon
    if origin < needed or origin >= data.series.values.shape[0]:
        raise ValueError(
            f"a pipeline cannot start after step {origin}: it needs {needed} steps before it, "
            f"and the recording has {data.series.values.shape[0]} steps"
        )
    graph = city_tables(data.graph)
    stream = forecast_streaming.start(params.forecaster, data, first - 1, cfg.forecaster)
    residual = flow_streaming.empty(params.factor.shape, cfg.flow.context.lags, cfg.flow.leads)
    before, last = (
        jax.tree.map(lambda leaf, rows=rows: leaf[rows], data.series) for rows in (slice(first, origin), origin)
    )
    stream, residual = _follow_series(params, graph, (stream, residual), before, cfg)
    city = CityState(stream, conformal, residual)
    city, latest = jax.jit(observe_city, static_argnames="cfg")(params, graph, city, CityObservation(*last), cfg)
    action = jnp.zeros((params.aggregator.weights.shape[0], cfg.agent.action.size))
    return PipelineState(city, latest, action, key)


def observe_city(
    params: SystemParams, graph: CityTables, state: CityState, city: CityObservation, cfg: SystemConfig
) -> tuple[CityState, CityInfo]:
    """One step of the city: judges it, learns from it, and says what the next hour will be."""
    (stream, residual), forecast, judged = _follow(params, graph, (state.stream, state.residual), city, cfg)
    detection = crfn_by.detect(params.calibration, judged, cfg.flow)
    conformal, online = intervals.update(state.conformal, forecast, *_label(city, cfg), cfg.conformal)
    view = city_view(
        params.aggregator,
        forecast.mean,
        forecast.sigma,
        detection.p_value,
        detection.rejected,
        judged.tested,
        cfg.aggregation,
    )
    return CityState(stream, conformal, residual), CityInfo(forecast, online.interval, detection, view)


@partial(jax.jit, static_argnames="cfg")
def observe_series(
    params: SystemParams, graph: CityTables, state: CityState, series: TrafficSeries, cfg: SystemConfig
) -> tuple[CityState, CityInfo]:
    """`observe_city` over consecutive steps; every leaf of the info gains a leading step axis."""
    step = lambda carried, row: observe_city(params, graph, carried, CityObservation(*row), cfg)  # noqa: E731
    return jax.lax.scan(step, state, series)


def tick(
    params: SystemParams,
    graph: CityTables,
    state: PipelineState,
    observation: Observation,
    cfg: SystemConfig,
    act_fn: ActFn,
) -> tuple[PipelineState, Array, TickInfo]:
    """One control step: the state after it, the action to execute [I, A] and everything worth logging."""
    city, latest = jax.lax.cond(
        observation.arrived,
        lambda city, _: observe_city(params, graph, city, observation.city, cfg),
        lambda city, latest: (city, latest),
        state.city,
        state.latest,
    )
    act_key, next_key = jax.random.split(state.key)
    rl_state = make_state(
        physical_state(observation.road), latest.view, state.action, observation.clock, cfg.agent.state
    )
    action, certificate = act_fn(params.agent, rl_state, state.action, act_key)
    return (
        PipelineState(city, latest, action, next_key),
        action,
        TickInfo(*latest, rl_state=rl_state, certificate=certificate),
    )


Followed = tuple[forecast_streaming.StreamState, flow_streaming.ResidualState]


def _follow(
    params: SystemParams, graph: CityTables, state: Followed, city: CityObservation, cfg: SystemConfig
) -> tuple[Followed, Forecast, Judged]:
    """The forecast made at a step and what the flow says about the residuals that it leaves of earlier ones."""
    stream, residual = state
    residual, arrived = flow_streaming.observe(
        residual, *_label(city, cfg), city.clock, params.factor, graph.flow, cfg.scale, cfg.flow.leads
    )
    judged, carried = crfn_by.step_judge(params.flow.network, arrived, residual.carried, cfg.flow)
    residual = residual._replace(carried=carried)
    stream = forecast_streaming.observe(params.forecaster, stream, *city, cfg.forecaster)
    forecast = forecast_streaming.forecast(params.forecaster, stream, graph.forecast, cfg.forecaster)
    return (stream, flow_streaming.issue(residual, forecast)), forecast, judged


@partial(jax.jit, static_argnames="cfg")
def _follow_series(
    params: SystemParams, graph: CityTables, state: Followed, series: TrafficSeries, cfg: SystemConfig
) -> Followed:
    def step(carried: Followed, row: TrafficSeries) -> tuple[Followed, None]:
        return _follow(params, graph, carried, CityObservation(*row), cfg)[0], None

    return jax.lax.scan(step, state, series)[0]


def _label(city: CityObservation, cfg: SystemConfig) -> tuple[Array, Array]:
    """The forecast feature of a step and where it was observed, [N] each."""
    target = cfg.forecaster.targets[0]
    return city.values[:, target], city.observed[:, target]
