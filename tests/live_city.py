"""A city of five cells with days of five steps and a system with random weights, for tests of what runs live."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stream_jax.conformal import intervals
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.flows import context, crfn_by
from stream_jax.flows.context import ContextConfig, FlowData
from stream_jax.flows.crfn_by import Calibration, FlowConfig
from stream_jax.flows.scale import ScaleConfig
from stream_jax.gnn import streaming
from stream_jax.gnn.attention import neighbour_table
from stream_jax.gnn.inputs import Scaler
from stream_jax.gnn.network import ForecasterConfig
from stream_jax.gnn.profile import ProfileConfig
from stream_jax.gnn.pu_gat_plus import ForecasterParams, init_params
from stream_jax.pipeline import SystemConfig, SystemParams
from stream_jax.rl import agent as agents
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.aggregation import Aggregator
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.world_network import WorldConfig
from stream_jax.types import ConformalState, Forecast, ForecastData, RoadGraph, TrafficSeries

# A week has 35 steps, so the recording holds two and a half of them: week lags of first and second order are in play.
CELLS, LENGTH, DAY = 5, 91, 5
PROFILE = ProfileConfig(DAY, smoothing=2, days=((0.3, 2.0), (0.9, 20.0)), cell_memories=(0.8, 0.95))
CFG = ForecasterConfig(
    layers=1, hidden=8, heads=2, history=4, horizon=3, trend_lags=3, embedding=2, calendar=True, profile=PROFILE
)


def city(hole: float = 0.0) -> ForecastData:
    """Counts around a daily wave; a tenth of the entries and three whole steps are missing and hold `hole`."""
    wave = 20.0 + 10.0 * jnp.sin(2 * jnp.pi * jnp.arange(LENGTH) / DAY)
    values = jax.random.poisson(jax.random.key(0), wave[:, None, None], (LENGTH, CELLS, 2)).astype(jnp.float32)
    observed = jax.random.bernoulli(jax.random.key(1), 0.9, values.shape).at[52:55].set(False)
    slot = (jnp.arange(LENGTH, dtype=jnp.int32) + 3) % (7 * DAY)
    angle = 2 * jnp.pi * slot[:, None] / jnp.array([DAY, 7 * DAY])
    clock = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], 1)[:, jnp.array([0, 2, 1, 3])]
    pairs = sorted(((j % CELLS, i) for i in range(CELLS) for j in (i - 1, i, i + 1)), key=lambda edge: edge[1])
    senders, receivers = jnp.array(pairs, jnp.int32).T
    graph = RoadGraph(senders, receivers, jnp.zeros((len(pairs), 3)), jnp.zeros((CELLS, 2)))
    series = TrafficSeries(jnp.where(observed, values, hole), observed, clock, slot)
    return ForecastData(series, graph, jnp.arange(3, 60, dtype=jnp.int32), jnp.arange(63, 80, dtype=jnp.int32))


def random_forecaster() -> ForecasterParams:
    """Random weights in every place, so that nothing the network is shown can be wrong unnoticed."""
    data = city()
    shape = data.series.values.shape[1:]  # [N, F]
    seasonal = jax.random.uniform(jax.random.key(2), (DAY, *shape), minval=1.0, maxval=3.0)
    scaler = Scaler(scale=jnp.array([8.0, 7.0]), unit=jnp.array([0.5, 0.7]), seasonal=seasonal)
    recent = streaming.empty(ForecasterParams(None, scaler), CFG).recent
    shared = (recent, scaler, neighbour_table(data.graph))
    network = jax.jit(init_params, static_argnums=3)(jax.random.key(2), shared, jnp.array([CFG.history]), CFG)
    return ForecasterParams(shaken(3, network), scaler)


def shaken(seed: int, tree: Any) -> Any:
    """Normal noise on every leaf."""
    rng = np.random.default_rng(seed)  # of numpy: it compiles nothing
    return jax.tree.map(lambda leaf: jnp.asarray(leaf + 0.3 * rng.normal(size=leaf.shape), jnp.float32), tree)


FLOW = FlowConfig(num_layers=2, hidden=8, context=ContextConfig(features=8, lags=2, heads=2, embedding=2), level=0.5)
AGENT = AgentConfig(
    policy=PolicyConfig(hidden=8, layers=1),
    world=WorldConfig(members=2, hidden=8, layers=1),
    safety=SafetyConfig(num_projections=2),
    forecast_horizon=CFG.horizon,
)
SYSTEM = SystemConfig(
    CFG, ConformalConfig(num_clusters=2, rolling_steps=10), FLOW, ScaleConfig(city_rate=0.3, cell_rate=0.2), agent=AGENT
)
INTERSECTIONS = 2
ADJACENCY = jnp.array([[0.0, 1.0], [1.0, 0.0]])


def random_system() -> tuple[SystemParams, ConformalState]:
    """A system that was never trained, and a conformal state calibrated on random errors."""
    steps = FlowData(
        z=jnp.zeros((1, CELLS, 1)),
        observed=jnp.ones((1, CELLS), bool),
        unit=jnp.ones((1, CELLS, 1)),
        clock=jnp.zeros((1, 4)),
        neighbours=context.neighbour_table(city().graph),
    )
    flow = shaken(5, jax.jit(crfn_by.init_params, static_argnums=2)(jax.random.key(4), steps, FLOW))
    scores = jnp.linspace(0.0, 6.0, 99)
    share = jnp.array([[0.5, 1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.5, 1.0, 0.0]])  # [I, N]
    correlation = 0.8 * jnp.eye(CELLS) + 0.2
    aggregator = Aggregator(share, correlation, jnp.full((INTERSECTIONS, CFG.horizon), 1.5), jnp.array([30.0, 20.0]))
    params = SystemParams(
        random_forecaster(),
        jnp.linspace(0.5, 1.5, CFG.horizon * CELLS).reshape(CFG.horizon, CELLS),
        flow,
        Calibration(scores, jnp.array(1.0), jnp.array(1.0), jnp.array(99, jnp.int32)),
        aggregator,
        shaken_agent(),
    )
    shape = (8, CFG.horizon, CELLS)
    forecast = Forecast(jnp.zeros(shape), jnp.ones(shape))
    errors = jax.random.normal(jax.random.key(6), shape)
    cluster = jnp.array([0, 0, 1, 1, 1], jnp.int32)
    return params, intervals.calibrate(forecast, errors, jnp.ones(shape, bool), cluster, SYSTEM.conformal)


def shaken_agent() -> agents.Agent:
    """A policy that proposes something, a filter that believes what it is told."""
    agent = agents.init(jax.random.key(7), ADJACENCY, AGENT)
    return agent._replace(policy=shaken(8, agent.policy), margin=jnp.array(0.01), fitted=jnp.array(True))
