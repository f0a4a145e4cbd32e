"""The learned controllers' part of stage `control`: the city's views, training for each seed, evaluation, rows."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from data.loader import TrafficDataset
from experiments.cli.networks import control_folder, grid_name, network_name
from experiments.cli.options import RunOptions
from experiments.evaluation.drives import Scores, by_hour, summarise, take_over
from experiments.presets import AGENT_SEEDS, TRAINING_LEVEL, experiment_config
from experiments.report import agent_figures
from experiments.stages import agent_road, agents, final_controllers, learners, system
from experiments.stages.actions import action_fact, chosen_action
from experiments.stages.agent_road import CityDays, Site
from experiments.stages.agents import OURS
from experiments.stages.final_controllers import Controller
from experiments.stages.system import KERNEL
from sim.city_road import CityRoad, episode_folder, vehicles_per_hour
from sim.demand import DEMAND_LEVELS, DemandLevel
from sim.keeping import keep_surroundings
from sim.loop import Episode
from sim.session import Scenario
from stream_jax import checkpoint, store
from stream_jax.checkpoint import System
from stream_jax.rl import trial
from stream_jax.rl.agent import AgentConfig
from stream_jax.task import ActionSpace


class Team(NamedTuple):
    """What the learned controllers of a run have in common."""

    preset: str
    seeds: int
    action: ActionSpace
    training: DemandLevel  # that they learn at
    sites: dict[str, Site]  # by controller: they differ in what the city says to them
    city: System  # the upstream models behind it, as ours meets them
    folder: Path  # of the control stage
    source: Path | None  # folder of final controllers that drive as they are, instead of learning
    recording: Path
    network: Path | None  # the user's own
    factor: float  # on the demand of every level
    origin: dict[str, Any]  # what is written about where they learned


class Taught(NamedTuple):
    """The controller of one seed."""

    agent: Any
    curve: list[dict]
    network: str  # on which it has learned


class Drive(NamedTuple):
    """What the controller of one seed did at one level of demand."""

    episodes: list[Episode]
    scores: Scores
    certificate: dict
    place: Path  # of its episodes


Judge = Callable[[list[Episode]], float]


def team_of(
    dataset: TrafficDataset,
    out: Path,
    args: RunOptions,
    road: CityRoad,
    workers: int,
    console: Console,
    names: Sequence[str],
) -> Team:
    """Says what is missing, of the controllers `names` or upstream, before anything is computed."""
    action, training = chosen_action(args, names), DEMAND_LEVELS[TRAINING_LEVEL]
    seeds, folder = args.seeds or AGENT_SEEDS[args.preset], control_folder(out, network_name(args))
    for path in [path for name in names for path in _files(args.trained, name, seeds, action)] if args.trained else ():
        final_controllers.content(path)
    cities = cities_of([OURS, *names], partial(_city, dataset, out, args, road, console))
    rate = vehicles_per_hour(training, len(road.network.ids), args.demand_factor)
    origin = {fact: dataset.manifest[fact] for fact in ("dataset", "data", "content_hash")}
    origin |= {"network": network_name(args) or grid_name(args), "level": training.name, "vehicles_per_hour": rate}
    return Team(
        preset=args.preset,
        seeds=seeds,
        action=action,
        training=training,
        sites={name: Site(road, days, rate, workers, console, action) for name, (_, days) in cities.items()},
        city=cities[OURS][0],
        folder=folder,
        source=args.trained,
        recording=out / "data",
        network=args.network,
        factor=args.demand_factor,
        origin=origin,
    )


def cities_of(
    names: Sequence[str], city: Callable[[str], tuple[System, CityDays]]
) -> dict[str, tuple[System, CityDays]]:
    """What the city says to each controller; variants of the aggregation have theirs. Args: city: of a covariance."""
    covariances = {name: agents.COVARIANCES.get(name, KERNEL.covariance) for name in names}
    found = {covariance: city(covariance) for covariance in dict.fromkeys(covariances.values())}
    return {name: found[covariance] for name, covariance in covariances.items()}


def taught(team: Team, name: str) -> list[Taught]:
    """The controllers of all seeds: trained here, or as they have learned elsewhere."""
    get = _train if team.source is None else _read
    found = [get(team, name, seed) for seed in range(team.seeds)]
    if name == OURS:
        keep_whole(team, found[0].agent)
    return found


def driven(team: Team, name: str, pupils: list[Taught], level: DemandLevel, scenarios: list[Scenario]) -> list[Drive]:
    """Episodes of every seed at one level."""
    cfg, first_plan, drives = config_of(team, name, level), learners.kind_of(name).first_plan, []
    for seed, pupil in enumerate(pupils):
        place = team.folder / level.name / _place(team, name) / f"seed{seed}"
        if first_plan and kept_iteration(pupil.curve) == 0:  # it has kept the plan that it began with
            take_over(episode_folder(team.folder, _demand(team, level), first_plan(team.action)), place)
        driving = learners.evaluate(name, seed, pupil.agent, cfg, team.sites[name], scenarios, place)
        drives.append(Drive(driving[0], by_hour(driving[0], level.limits), driving[1], place))
    return drives


def rows_of(
    team: Team,
    name: str,
    pupils: list[Taught],
    drives: list[Drive],
    level: DemandLevel,
    scenario: Scenario,
    references: dict[str, Scores],
    judge: Judge | None,
) -> list[dict]:
    """Results of one controller at one level: means over seeds and episodes, each seed's own, and its certificate.

    Args:
        scenario: any, for its length.
        references: scores by hour of what to compare with, by name.
        judge: how often our L fell as it should in some episodes; None: there is none.
    """
    cfg, rows, is_from_here = config_of(team, name, level), [], pupils[-1].network == team.origin["network"]
    for seed, (pupil, drive) in enumerate(zip(pupils, drives, strict=True)):
        facts = seed_facts(list(drive.scores.values()), pupil.curve, cfg, scenario)
        facts |= {f"certificate_{part}": value for part, value in drive.certificate.items()}
        if judge and drive.episodes:
            facts["decrease_under_ours"] = judge(drive.episodes)
        rows += [{"metric": metric, "seed": seed, "value": value} for metric, value in facts.items()]
        if level == team.training and is_from_here:
            points = [{"episodes": driven_episodes(point, cfg), **point} for point in pupil.curve]
            rows += [{"metric": "curve", "seed": seed, **point} for point in points]
    scores = [drive.scores for drive in drives]
    if not any(scores):
        return []
    common = {"method": name, "level": level.name, "vehicles_per_hour": _demand(team, level)}
    common |= action_fact(team.action) | ({} if is_from_here else {"trained_on": pupils[-1].network})
    return [common | row for row in summarise(scores, level.limits, references) + rows]


def draw(team: Team, pupil: Taught, drive: Drive, level: DemandLevel) -> None:
    """Pictures of our first controller, at the level where it has learned."""
    if level == team.training and pupil.network == team.origin["network"] and drive.episodes:
        cfg = config_of(team, OURS, level)
        agent_figures.draw_all(team.folder, pupil.curve, drive.episodes, drive.place, team.sites[OURS].road, cfg)


def judge_of(team: Team, ours: list[Taught], level: DemandLevel) -> Judge:
    """How often L fell as it should in anybody's episodes, mean over the L of our agents."""
    cfg = config_of(team, OURS, level)
    return lambda episodes: float(np.mean([agents.decrease_share(one.agent, episodes, cfg) for one in ours]))


def config_of(team: Team, name: str, level: DemandLevel) -> AgentConfig:
    """With which a controller learns or acts at a level."""
    return agents.agent_config(name, team.preset, level, team.action)


def keep_whole(team: Team, agent: Any) -> None:
    """The whole trained system with the recording that it starts from, for control.py and verify.py."""
    config = dataclasses.replace(team.city.config, agent=config_of(team, OURS, team.training))
    whole = team.city._replace(params=team.city.params._replace(agent=agent), config=config)
    folder = team.folder / "checkpoint"
    checkpoint.save(folder, whole)
    keep_surroundings(folder, team.recording, team.network, team.factor)


def seed_facts(scores: list[dict], curve: list[dict], cfg: AgentConfig, scenario: Scenario) -> dict[str, float]:
    """Means of one seed over its episodes, and what its learning took."""
    means = {f"{metric}_of_seed": float(np.mean([one[metric] for one in scores])) for metric in (scores or [{}])[0]}
    return means | {"sumo_steps": sumo_steps(curve, cfg, scenario), "kept_iteration": kept_iteration(curve)}


def sumo_steps(curve: list[dict], cfg: AgentConfig, scenario: Scenario) -> int:
    """Simulated seconds that learning has seen, warm-ups and validation included."""
    return sum(driven_episodes(row, cfg) for row in curve) * (scenario.warmup_s + scenario.duration_s)


def kept_iteration(curve: list[dict]) -> int:
    """Iterations behind the controller that was chosen: 0 is what learning began with."""
    chosen = [row["iteration"] for row in curve if row["kind"] == "validation" and row["is_kept"]]
    return chosen[-1] if chosen else max(row["iteration"] + 1 for row in curve if row["kind"] == "train")


def driven_episodes(row: dict, cfg: AgentConfig) -> int:
    """Episodes behind a row of a learning curve."""
    return {"trial": trial.episodes(cfg), "train": cfg.episodes, "validation": cfg.validation_episodes}[row["kind"]]


def _city(
    dataset: TrafficDataset, out: Path, args: RunOptions, road: CityRoad, console: Console, covariance: str
) -> tuple[System, CityDays]:
    """The upstream models as a controller meets them, and all they say."""
    spatial, adjacency = dataclasses.replace(KERNEL, covariance=covariance), agent_road.adjacency(road.network)
    cfg = experiment_config(args)
    city = system.upstream_system(dataset, out, 0, cfg, road.weights, adjacency, console, spatial)
    return city, system.city_days(city, dataset)


def _train(team: Team, name: str, seed: int) -> Taught:
    cfg, kind, site = config_of(team, name, team.training), learners.kind_of(name), team.sites[name]
    place = team.folder / "agents" / _circumstances(team, name) / _place(team, name)
    place.mkdir(parents=True, exist_ok=True)
    described = kind.described(cfg)
    (place / "config.json").write_text(json.dumps(described, indent=1))
    if site.console is not None:
        site.console.print(f"  {name}, seed {seed}: learning at {team.training.name} demand ...")
    agent, curve = learners.train(name, seed, cfg, site, place)
    path = final_controllers.file_of(team.folder / final_controllers.FOLDER, name, seed, team.action)
    final_controllers.write(path, Controller(kind.weights(agent), described, curve, team.origin))
    return Taught(agent, curve, team.origin["network"])


def _read(team: Team, name: str, seed: int) -> Taught:
    """A controller that has learned elsewhere, as it is."""
    cfg, kind = config_of(team, name, team.training), learners.kind_of(name)
    blank = kind.blank(jax.numpy.asarray(agent_road.adjacency(team.sites[name].road.network)), cfg)
    path = _files(team.source, name, team.seeds, team.action)[seed]
    found = final_controllers.read(path, kind.weights(blank), kind.described(cfg))
    return Taught(kind.with_weights(blank, found.weights), found.curve, found.origin["network"])


def _files(source: Path, name: str, seeds: int, action: ActionSpace) -> list[Path]:
    return [final_controllers.file_of(source, name, seed, action) for seed in range(seeds)]


def _place(team: Team, name: str) -> str:
    """A folder name that changes with whatever an agent is learned from."""
    cfg = config_of(team, name, team.training)
    files = _files(team.source, name, team.seeds, team.action) if team.source is not None else []
    weights = [final_controllers.content(path) for path in files]  # what was learned elsewhere is another controller
    facts = cfg, _circumstances(team, name), learners.kind_of(name).learned_from(cfg), weights
    return f"{name.replace(':', '-')}-{store.key('learning', *facts)}"


def _circumstances(team: Team, name: str) -> str:
    """A folder name that changes with the demand, the road and what the city says."""
    site = team.sites[name]
    demand = store.VERSIONS["episode"], site.vehicles_per_hour, site.road.planner.cfg
    return f"{team.training.name}-{store.key('demand', demand, jax.tree.leaves(site.days.view))}"


def _demand(team: Team, level: DemandLevel) -> float:
    """Vehicles per hour that are driven at a level."""
    return vehicles_per_hour(level, len(team.sites[OURS].road.network.ids), team.factor)
