"""The learned controllers' part of stage `control`: the city's views, training for each seed, evaluation, rows."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from data.errors import DataError
from data.loader import TrafficDataset
from experiments.cli.networks import control_folder, grid_name, network_name
from experiments.cli.options import RunOptions
from experiments.evaluation.drives import NOTHING, Scores, by_hour, hourly, summarise, take_over
from experiments.presets import experiment_config
from experiments.report import agent_figures
from experiments.stages import agent_road, agents, final_controllers, rivals, system
from experiments.stages.agent_road import CityDays, Site
from experiments.stages.agents import FOLLOWING, OURS, RIVALS
from experiments.stages.final_controllers import Controller
from experiments.stages.keeping import keep_surroundings
from experiments.stages.system import KERNEL
from sim.city_road import CityRoad, episode_folder, vehicles_per_hour
from sim.demand import DemandLevel
from sim.loop import Episode
from sim.session import Scenario
from stream_jax import checkpoint, store
from stream_jax.checkpoint import System
from stream_jax.rl import trial
from stream_jax.rl.agent import Agent, AgentConfig
from stream_jax.task import GREENS, PRICES, SPACES, ActionSpace

TRAINING_LEVEL = "heavy"  # where agents learn; elsewhere the same controller is evaluated as it is


class LearnedControllers:
    """Trains and evaluates agents on one city's road; whatever is finished is read back."""

    def __init__(
        self,
        dataset: TrafficDataset,
        out: Path,
        args: RunOptions,
        road: CityRoad,
        workers: int,
        console: Console,
        names: list[str],
    ) -> None:
        """Says what is missing, of the controllers `names` or upstream, before anything is computed."""
        self.dataset, self.out, self.cfg = dataset, out, experiment_config(args)
        self.preset, self.seeds, self.workers = args.preset, args.seeds or agents.SEEDS[args.preset], workers
        self.cities: dict[str, tuple[System, CityDays]] = {}
        self.trained: dict[tuple[str, int], tuple[Agent, list[dict]]] = {}
        self.road, self.console, self.folder = road, console, control_folder(out, network_name(args))
        self.network, self.factor, self.here = args.network, args.demand_factor, network_name(args) or grid_name(args)
        self.source: Path | None = args.trained  # folder of final controllers that drive as they are
        self.action = chosen_action(args, names)
        self.hours: dict[str, Scores] = {}  # of ours, mean over seeds, by level
        self.drives: dict[str, list[Scores]] = {}  # of everybody's seeds, by level
        self.origins: dict[str, str] = {}  # networks on which those have learned
        for path in [path for name in names for path in self._files(name)] if self.source else ():
            final_controllers.content(path)
        self._city(OURS)

    def rows(
        self,
        name: str,
        level: DemandLevel,
        training: DemandLevel,
        scenarios: list[Scenario],
        reference: Scores,
        is_judged: bool,
    ) -> list[dict]:
        """Results of one method at one level: means over seeds and episodes, each seed's own, and its certificate.

        Args:
            reference: scores of the default plan by hour; those of ours are known if ours comes before.
            is_judged: whether our L looks at the episodes, see `judgement`.
        """
        drives, rows = [], []
        for seed in range(self.seeds):
            agent, curve = self._trained(name, seed, training)
            cfg = self._config(name, level)
            place = self.folder / level.name / self._place(name, training) / f"seed{seed}"
            if name in RIVALS and kept_iteration(curve) == 0:  # it has kept the plan that it began with
                take_over(episode_folder(self.folder, self._demand(level), rivals.first_plan(name, self.action)), place)
            evaluate = rivals.evaluate_rival if name in RIVALS else agents.evaluate_agent
            episodes, verdict = evaluate(name, seed, agent, cfg, self._site(name, training), scenarios, place)
            scores = by_hour(episodes, level.limits)
            drives.append(scores)
            facts = seed_facts(list(scores.values()), curve, cfg, scenarios[0])
            facts |= {f"certificate_{part}": value for part, value in verdict.items()}
            if is_judged and episodes:
                facts["decrease_under_ours"] = self.judgement(episodes, level, training)
            rows += [{"metric": metric, "seed": seed, "value": value} for metric, value in facts.items()]
            if level == training and self._is_from_here(name):
                rows += [{"metric": "curve", "seed": seed, "episodes": driven(point, cfg), **point} for point in curve]
                if name == OURS and seed == 0 and episodes:
                    agent_figures.draw_all(self.folder, curve, episodes, place, self.road, cfg)
        if not any(drives):
            return []
        self.drives.setdefault(level.name, []).extend(drives)
        references = {"default": reference}
        if name == OURS:
            self.hours[level.name] = hourly(drives)
        else:
            references["ours"] = self.hours.get(level.name, NOTHING)
        common = {"method": name, "level": level.name, "vehicles_per_hour": self._demand(level)}
        common |= action_fact(self.action)
        if not self._is_from_here(name):
            common["trained_on"] = self.origins[name]
        pooled = summarise(drives, level.limits, references)
        return [common | row for row in pooled + rows]

    def judgement(self, episodes: list[Episode], level: DemandLevel, training: DemandLevel) -> float:
        """How often L fell as it should in anybody's episodes, mean over the L of our agents."""
        cfg = self._config(OURS, level)
        judges = [self._trained(OURS, seed, training)[0] for seed in range(self.seeds)]
        return float(np.mean([agents.decrease_share(judge, episodes, cfg) for judge in judges]))

    def _city(self, name: str) -> tuple[System, CityDays]:
        """The upstream models as a controller meets them, and all they say; variants of the aggregation have theirs."""
        covariance = agents.COVARIANCES.get(name, KERNEL.covariance)
        if covariance not in self.cities:
            adjacency = agent_road.adjacency(self.road.network)
            spatial = dataclasses.replace(KERNEL, covariance=covariance)
            city = system.upstream_system(
                self.dataset, self.out, self.folder, 0, self.cfg, self.road.weights, adjacency, self.console, spatial
            )
            self.cities[covariance] = city, system.city_days(city, self.dataset)
        return self.cities[covariance]

    def _site(self, name: str, training: DemandLevel) -> Site:
        return Site(self.road, self._city(name)[1], self._demand(training), self.workers, self.console, self.action)

    def _config(self, name: str, level: DemandLevel) -> AgentConfig:
        return agents.agent_config(name, self.preset, level, self.action)

    def _trained(self, name: str, seed: int, level: DemandLevel) -> tuple[Agent, list[dict]]:
        """The agent of a seed and its learning curve; kept, since every level of demand asks for it."""
        if (name, seed) not in self.trained:
            get = self._train if self.source is None else self._read
            self.trained[name, seed] = get(name, seed, level)
            if name == OURS and seed == 0:
                self._keep(self.trained[name, seed][0], self._config(name, level))
        return self.trained[name, seed]

    def _train(self, name: str, seed: int, level: DemandLevel) -> tuple[Agent, list[dict]]:
        cfg = self._config(name, level)
        place = self.folder / "agents" / self._circumstances(name, level) / self._place(name, level)
        place.mkdir(parents=True, exist_ok=True)
        described = _described(name, cfg)
        (place / "config.json").write_text(json.dumps(described, indent=1))
        self.console.print(f"  {name}, seed {seed}: learning at {level.name} demand ...")
        common = seed, cfg, self._site(name, level), place
        agent, curve = rivals.train_rival(name, *common) if name in RIVALS else agents.train_agent(*common)
        weights = rivals.acting(agent) if name in RIVALS else agent
        origin = {fact: self.dataset.manifest[fact] for fact in ("dataset", "data", "content_hash")}
        origin |= {"network": self.here, "level": level.name, "vehicles_per_hour": self._demand(level)}
        path = final_controllers.file_of(self.folder / final_controllers.FOLDER, name, seed, self.action)
        final_controllers.write(path, Controller(weights, described, curve, origin))
        return agent, curve

    def _read(self, name: str, seed: int, level: DemandLevel) -> tuple[Agent, list[dict]]:
        """A controller that has learned elsewhere, as it is."""
        cfg = self._config(name, level)
        adjacency = jax.numpy.asarray(agent_road.adjacency(self.road.network))
        is_rival = name in RIVALS
        blank = rivals.start(name, adjacency, cfg) if is_rival else agents.start(adjacency, cfg)
        like = rivals.acting(blank) if is_rival else blank
        found = final_controllers.read(self._files(name)[seed], like, _described(name, cfg))
        self.origins[name] = found.origin["network"]
        return rivals.with_acting(blank, found.weights) if is_rival else found.weights, found.curve

    def _files(self, name: str) -> list[Path]:
        return [final_controllers.file_of(self.source, name, seed, self.action) for seed in range(self.seeds)]

    def _is_from_here(self, name: str) -> bool:
        """Whether a controller has learned on the network that it drives."""
        return self.origins.get(name, self.here) == self.here

    def _place(self, name: str, level: DemandLevel) -> str:
        """A folder name that changes with whatever an agent is learned from."""
        cfg = self._config(name, level)
        learned_from = rivals.learned_from(name, cfg) if name in RIVALS else (trial.FOLLOWING, agents.TRIED)
        # What was learned elsewhere is another controller.
        weights = [] if self.source is None else [final_controllers.content(path) for path in self._files(name)]
        mark = store.key("learning", cfg, self._circumstances(name, level), learned_from, weights)
        return f"{name.replace(':', '-')}-{mark}"

    def _circumstances(self, name: str, level: DemandLevel) -> str:
        """A folder name that changes with the demand, the road and what the city says."""
        driven = store.VERSIONS["episode"], self._demand(level), self.road.planner.cfg
        return f"{level.name}-{store.key('demand', driven, jax.tree.leaves(self._city(name)[1].view))}"

    def _demand(self, level: DemandLevel) -> float:
        """Vehicles per hour that are driven at a level."""
        return vehicles_per_hour(level, len(self.road.network.ids), self.factor)

    def _keep(self, agent: Agent, cfg: AgentConfig) -> None:
        """The whole trained system with the recording that it starts from, for control.py and verify.py."""
        city, _ = self._city(OURS)
        config = dataclasses.replace(city.config, agent=cfg)
        whole = city._replace(params=city.params._replace(agent=agent), config=config)
        folder = self.folder / "checkpoint"
        checkpoint.save(folder, whole)
        keep_surroundings(folder, self.out / "data", self.network, self.factor)


def chosen_action(args: RunOptions, names: Sequence[str]) -> ActionSpace:
    """What the learned controllers `names` set; refuses a start that is a plan of greens for those that set prices."""
    if args.action is None and args.trained is not None:
        return final_controllers.action_of(args.trained, names)
    action = SPACES[args.action or PRICES.name]
    follows = [name for name in names if name.endswith(FOLLOWING)]
    if follows and action != GREENS:
        raise DataError(f"{follows[0]} begins with a plan of greens; add --action {GREENS.name}.")
    return action


def action_fact(action: ActionSpace) -> dict[str, str]:
    """What rows of learned controllers say about their action: nothing where it is greens, as the first ones were."""
    return {} if action == GREENS else {"action": action.name}


def _described(name: str, cfg: AgentConfig) -> dict:
    """Everything that a controller is learned with."""
    return rivals.as_dict(name, cfg) if name in RIVALS else dataclasses.asdict(cfg)


def seed_facts(scores: list[dict], curve: list[dict], cfg: AgentConfig, scenario: Scenario) -> dict[str, float]:
    """Means of one seed over its episodes, and what its learning took."""
    means = {f"{metric}_of_seed": float(np.mean([one[metric] for one in scores])) for metric in (scores or [{}])[0]}
    return means | {"sumo_steps": sumo_steps(curve, cfg, scenario), "kept_iteration": kept_iteration(curve)}


def sumo_steps(curve: list[dict], cfg: AgentConfig, scenario: Scenario) -> int:
    """Simulated seconds that learning has seen, warm-ups and validation included."""
    return sum(driven(row, cfg) for row in curve) * (scenario.warmup_s + scenario.duration_s)


def kept_iteration(curve: list[dict]) -> int:
    """Iterations behind the controller that was chosen: 0 is what learning began with."""
    chosen = [row["iteration"] for row in curve if row["kind"] == "validation" and row["is_kept"]]
    return chosen[-1] if chosen else max(row["iteration"] + 1 for row in curve if row["kind"] == "train")


def driven(row: dict, cfg: AgentConfig) -> int:
    """Episodes behind a row of a learning curve."""
    return {"trial": trial.episodes(cfg), "train": cfg.episodes, "validation": cfg.validation_episodes}[row["kind"]]
