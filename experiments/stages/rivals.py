"""The learning rivals on the road: as many episodes as LyCon-WRL+, kept and resumed in the same way.

Every rival is validated on the same episodes as ours and by the same rule, and its best controller is evaluated.
"""

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from experiments.methods import catalogue
from experiments.methods.control import following_plan, lookahead
from experiments.methods.control.controllers import REFERENCE
from experiments.methods.control.road_task import default_plan, road_task, step_maker, trajectories
from experiments.methods.control.task import Task, Units, measure_units, remembered
from experiments.stages import agent_road
from experiments.stages.agent_road import Site
from experiments.stages.agents import FOLLOWING, RIVALS, learning_episodes
from stream_jax import store
from stream_jax.rl import agent as agents
from stream_jax.rl import learning, trial, verification
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.episodes import Episode
from stream_jax.rl.learning import Algorithm, Collect, Learned, PolicyStep, Row
from stream_jax.task import GREENS, ActionSpace

METHODS: dict[str, ModuleType] = {
    name: catalogue.module_of(catalogue.LEARNERS[name.removesuffix(FOLLOWING)]) for name in RIVALS
}


class RivalState(NamedTuple):
    """Everything that learning carries from iteration to iteration, besides the episodes."""

    learner: Any
    units: Units  # of the first episodes


def settings(name: str, cfg: AgentConfig) -> Any:
    """A rival's sizes, rates and number of updates, as far as they have a counterpart the same as ours."""
    return catalogue.record(catalogue.LEARNERS[name.removesuffix(FOLLOWING)]).config(cfg)


def learned_from(name: str, cfg: AgentConfig) -> Any:
    """Settings and, where it is not the default plan, what learning begins with."""
    chosen = settings(name, cfg)
    return (chosen, trial.FOLLOWING) if name.endswith(FOLLOWING) else chosen


def first_plan(name: str, action: ActionSpace = GREENS) -> str:
    """The controller without learning that a rival begins with, by the name of its episodes' folder."""
    if action != GREENS:
        return f"lookahead-{lookahead.version()}"
    return f"following_plan-{following_plan.version()}" if name.endswith(FOLLOWING) else REFERENCE


def task_of(name: str, adjacency: Array, cfg: AgentConfig) -> Task:
    """The road with the plan that a rival begins with."""
    return road_task(adjacency, cfg, following_plan.plan if name.endswith(FOLLOWING) else default_plan)


def fit(
    key: Array,
    name: str,
    collect: Collect,
    adjacency: Array,
    cfg: AgentConfig,
    checkpoint_dir: Path | str | None = None,
) -> Learned:
    """Learns by `cfg.iterations` rounds of collecting and improving; the learner is a `RivalState`.

    Args:
        adjacency: [I, I] row-normalised, who is next to whom.
    """
    kept = AgentStore(checkpoint_dir, _fingerprint(key, name, adjacency, cfg))
    return learning.learn(key, algorithm(name, adjacency, cfg), collect, cfg, kept)


def algorithm(name: str, adjacency: Array, cfg: AgentConfig) -> Algorithm:
    """A rival as the loop runs it: its learner, and the units of its reward from the first episodes."""
    method, chosen, task = METHODS[name], settings(name, cfg), task_of(name, adjacency, cfg)
    make_step = step_maker(method, chosen, task, cfg)
    improve = jax.jit(lambda *inputs: method.improve(*inputs, task, chosen))
    units_of = jax.jit(lambda rollouts: measure_units(task, rollouts))
    capacity = min(cfg.replay, cfg.iterations) * cfg.episodes

    def start(key: Array) -> RivalState:
        blank = agents.blank_state(adjacency.shape[0], cfg)
        return RivalState(method.start(key, task, blank, chosen), Units(jnp.zeros(()), jnp.ones(())))

    def improved(key: Array, state: RivalState, index: int, memory: list[Episode]) -> tuple[RivalState, Row]:
        history = [_rollouts(episodes, cfg=cfg) for episodes in memory]
        units = units_of(history[-1]) if index == 0 else state.units
        learner, found = improve(key, state.learner, remembered(history, capacity), history[-1], units)
        row = verification.summary(learning.performance(memory[-1], cfg=cfg), cfg.limits)
        return RivalState(learner, units), row | {name: float(value) for name, value in found.items()}

    return Algorithm(start, lambda key, state, explore: make_step(key, state.learner, explore), improved)


def train_rival(name: str, seed: int, cfg: AgentConfig, site: Site, folder: Path) -> tuple[Any, list[Row]]:
    """A rival of one seed and its learning curve, on hours drawn with the same seed as ours."""
    collect = learning_episodes(seed, site, folder)
    adjacency = jnp.asarray(agent_road.adjacency(site.road.network))
    learned = fit(jax.random.key(seed), name, collect, adjacency, cfg, folder / f"seed{seed}")
    return learned.learner.learner, learned.rows


def policy(name: str, key: Array, learner: Any, adjacency: Array, cfg: AgentConfig) -> PolicyStep:
    """How a rival drives: without exploration."""
    make = step_maker(METHODS[name], settings(name, cfg), task_of(name, adjacency, cfg), cfg)
    return make(key, learner, False)


def start(name: str, adjacency: Array, cfg: AgentConfig) -> Any:
    """A rival that has learned nothing, for shapes."""
    blank = agents.blank_state(adjacency.shape[0], cfg)
    return METHODS[name].start(jax.random.key(0), task_of(name, adjacency, cfg), blank, settings(name, cfg))


def acting(learner: Any) -> Any:
    """All that a rival acts by without exploration."""
    return learner.params.actor


def with_acting(learner: Any, actor: Any) -> Any:
    """The learner with another rival's way to act."""
    return learner._replace(params=learner.params._replace(actor=actor))


def as_dict(name: str, cfg: AgentConfig) -> dict[str, Any]:
    """Everything that a rival is learned with, for its folder."""
    begun = {"begins_with": trial.FOLLOWING} if name.endswith(FOLLOWING) else {}
    return dataclasses.asdict(cfg) | {"rival": dataclasses.asdict(settings(name, cfg))} | begun


_rollouts = jax.jit(trajectories, static_argnames="cfg")


def _fingerprint(key: Array, name: str, adjacency: Array, cfg: AgentConfig) -> str:
    """Tells whether a checkpoint belongs to this run: same rival and settings, same key, same road."""
    return store.key("learning", name, cfg, learned_from(name, cfg), jax.random.key_data(key), adjacency, length=64)
