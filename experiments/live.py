"""A trained system at work on a road: its own city's, or the network and routes that a user brings."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from data import loader
from data.errors import DataError
from data.loader import TrafficDataset
from experiments.stages import agent_road
from experiments.stages.keeping import DATA, kept_road
from sim.city_road import draw_scenarios, vehicles_per_hour
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.drivers import DRIVERS
from sim.network import Network, read_network
from sim.session import Scenario, Session, SessionConfig
from sim.sumocfg import demand_of, is_sumocfg, read_sumocfg
from stream_jax import checkpoint, pipeline
from stream_jax.checkpoint import System
from stream_jax.rl.state import advance_clock, make_state
from stream_jax.task import Limits, constraint_values, physical_state
from stream_jax.types import Certificate, CityView, RoadMeasurement

MINUTES = 40  # of an episode, unless a .sumocfg or the user says otherwise
WARMUP_S = 60  # before a user's own vehicles are driven by the controller
Decide = Callable[[int, RoadMeasurement], tuple]  # minute, road -> action, view, certificate, anomalous cells


class LiveTick(NamedTuple):
    """One control step as it happened."""

    minute: int
    road: RoadMeasurement  # before the action
    x: np.ndarray  # [I, 10]
    view: CityView
    action: np.ndarray  # [I, 9]
    certificate: Certificate
    rejected: int  # cells of the city that are anomalous
    after: RoadMeasurement


def open_checkpoint(folder: Path) -> tuple[System, TrafficDataset]:
    """A trained system and the recording it belongs to; refuses one without the other."""
    if not (folder / DATA).exists():
        raise DataError(
            f"{folder} has no recording in {folder / DATA}; make the checkpoint with run.py's control stage."
        )
    dataset = loader.load(folder / DATA)
    system = checkpoint.load(folder, dataset.manifest["content_hash"])
    params, conformal = jax.tree.map(jnp.asarray, (system.params, system.conformal))
    return system._replace(params=params, conformal=conformal), dataset


def city_scenario(
    folder: Path, system: System, dataset: TrafficDataset, level: str, seed: int, minutes: int, cache: Path
) -> tuple[Network, Scenario]:
    """An hour of the checkpoint's own city and road, from the part of its recording that nothing was trained on."""
    demand = DemandConfig(duration_s=60 * minutes, bin_s=dataset.manifest["bin_s"])
    road, factor = kept_road(folder, system, dataset, demand, cache)
    rate = vehicles_per_hour(DEMAND_LEVELS[level], len(road.network.ids), factor)
    return road.network, draw_scenarios(road, "test", rate, range(seed, seed + 1), cache)[0]


def users_scenario(
    network: Path, routes: Path | None, seed: int, minutes: int | None = None
) -> tuple[Network, Scenario]:
    """A user's network and vehicles; there is no city behind them.

    Args:
        network: .net.xml or .sumocfg; SUMO reads a .sumocfg whole.
        routes: instead of those of the .sumocfg; a .net.xml has none.
        minutes: as long as the .sumocfg says, or MINUTES, if None.
    """
    found = read_network(network)
    config = read_sumocfg(network) if is_sumocfg(network) else None
    if routes is None:
        if config is None:
            raise DataError(f"{network} has no vehicles; give --routes, or a .sumocfg that names network and routes.")
        routes = demand_of(config)
    if not routes.is_file():
        raise DataError(f"There is no route file {routes}; give SUMO's .rou.xml with --routes.")
    duration_s = 60 * (minutes or MINUTES)
    if minutes is None and config and config.end_s is not None:
        duration_s = max(60, (config.end_s - config.begin_s - WARMUP_S) // 60 * 60)
    begin_s, file = (config.begin_s, config.file) if config else (0, None)
    flow = np.zeros((1, len(found.ids)))
    return found, Scenario(routes.absolute(), (), WARMUP_S, duration_s, seed, -1, flow, begin_s, file)


def drive(
    system: System, dataset: TrafficDataset | None, network: Network, scenario: Scenario, cfg: SessionConfig
) -> Iterator[LiveTick]:
    """Steps SUMO and the compiled tick by turns; the recording plays the city's sensors."""
    adjacency = jnp.asarray(agent_road.adjacency(network))
    decide = _with_city(system, dataset, scenario, adjacency) if dataset else _without_city(system, network, adjacency)
    with Session(network, DRIVERS[system.config.agent.action.name](), cfg) as session:
        road, minute = session.reset(scenario), 0
        while not session.done:
            action, view, certificate, rejected = decide(minute, road)
            after = session.step(np.asarray(action))
            x = np.asarray(physical_state(jax.tree.map(jnp.asarray, road)))
            yield LiveTick(minute, road, x, view, np.asarray(action), certificate, rejected, after)
            road, minute = after, minute + cfg.control_s // 60


def describe(tick: LiveTick) -> str:
    """One line for a person."""
    limits = Limits()  # for the names: values do not depend on them
    values = constraint_values(jnp.asarray(tick.x), limits)
    road = "  ".join(one.constraint.text.format(float(values[one.name])) for one in limits.bounds)
    source = ("policy", "projected", "previous", "default", "longest queue", "least excess")
    mark = "certified" if bool(tick.certificate.certified) else "UNCERTIFIED"
    mean, sigma = np.asarray(tick.view.mean)[:, 0].mean(), np.asarray(tick.view.sigma)[:, 0].mean()
    return (
        f"{tick.minute:3d} min  {road}  "
        f"forecast {mean:4.2f} ± {sigma:4.2f}  anomalous cells {tick.rejected:2d}  "
        f"action {np.abs(tick.action).mean():.2f} from {source[int(tick.certificate.source)]:<13}  {mark}"
    )


def _with_city(system: System, dataset: TrafficDataset, scenario: Scenario, adjacency: jax.Array) -> Decide:
    """Decides with forecasts and detections of the steps that have passed."""
    data = jax.tree.map(jnp.asarray, dataset.forecast_data(dataset.num_folds - 1))
    tables, cfg = pipeline.city_tables(data.graph), system.config
    act_fn = pipeline.controller(adjacency, cfg.agent)
    tick = jax.jit(lambda state, seen: pipeline.tick(system.params, tables, state, seen, cfg, act_fn))
    state = pipeline.start(
        jax.random.key(scenario.seed), system.params, system.conformal, data, scenario.first_step - 1, cfg
    )
    per_step = dataset.manifest["bin_s"] // agent_road.CONTROL_S
    clocks = agent_road.clocks(scenario, np.asarray(data.series.clock), dataset.manifest["bin_s"])

    def decide(minute: int, road: RoadMeasurement) -> tuple:
        nonlocal state
        step = scenario.first_step - 1 + minute // per_step
        city = pipeline.CityObservation(*jax.tree.map(lambda leaf: leaf[step], data.series))
        arrived = jnp.array(minute > 0 and minute % per_step == 0)
        seen = pipeline.Observation(jax.tree.map(jnp.asarray, road), city, arrived, clocks[minute])
        state, action, info = tick(state, seen)
        return action, info.view, info.certificate, int(info.detection.rejected.sum())

    return decide


def _without_city(system: System, network: Network, adjacency: jax.Array) -> Decide:
    """Decides by the road alone: the view says that everything is as usual."""
    count, cfg = len(network.ids), system.config
    flow = jnp.ones((count, cfg.forecaster.horizon))
    view = CityView(flow, 0.0 * flow, jnp.ones(count), jnp.zeros(count))
    act_fn = pipeline.controller(adjacency, cfg.agent)
    previous, clock = jnp.zeros((count, cfg.agent.action.size)), jnp.zeros(5).at[1].set(1.0).at[3].set(1.0)

    @jax.jit
    def step(road: RoadMeasurement, previous: jax.Array, clock: jax.Array) -> tuple:
        state = make_state(physical_state(road), view, previous, clock, cfg.agent.state)
        action, certificate = act_fn(system.params.agent, state, previous, jax.random.key(0))
        return action, certificate, advance_clock(clock, float(agent_road.CONTROL_S), 900.0)

    def decide(_: int, road: RoadMeasurement) -> tuple:
        nonlocal previous, clock
        previous, certificate, clock = step(jax.tree.map(jnp.asarray, road), previous, clock)
        return previous, view, certificate, 0

    return decide
