"""The learning rivals on the road: as many episodes as LyCon-WRL+, kept and resumed in the same way.

Every rival is validated on the same episodes as ours and by the same rule, and its best controller is evaluated.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from experiments.evaluation import drives as evaluation
from experiments.methods.control import cpo, following_plan, la_mbda, lookahead, ppo, sac_lagrangian
from experiments.methods.control.controllers import REFERENCE
from experiments.methods.control.cpo import CPOConfig
from experiments.methods.control.la_mbda import LambdaConfig
from experiments.methods.control.posterior import PosteriorConfig
from experiments.methods.control.ppo import PPORivalConfig
from experiments.methods.control.road_task import MakeStep, default_plan, road_task, step_maker, trajectories
from experiments.methods.control.sac_lagrangian import SACConfig
from experiments.methods.control.task import Task, Units, measure_units, remembered
from experiments.stages import agent_road
from experiments.stages.agent_road import Site
from experiments.stages.agents import FOLLOWING, RIVALS, learning_episodes
from sim.session import Scenario
from stream_jax import store
from stream_jax.rl import agent as agents
from stream_jax.rl import replay, trial, verification
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.episodes import Episode
from stream_jax.rl.lycon_wrl_plus import Collect
from stream_jax.task import GREENS, ActionSpace

_MODULES = (ppo, cpo, sac_lagrangian, la_mbda)
METHODS: dict[str, ModuleType] = dict(zip(RIVALS, 2 * _MODULES, strict=True))
Row = dict[str, Any]


class RivalState(NamedTuple):
    """Everything that learning carries from iteration to iteration, besides the episodes."""

    learner: Any
    units: Units
    best: Any  # learner, on the validation episodes
    best_score: Array  # [2] its `verification.merit`, compared in this order
    iteration: Array  # [] int32, iterations done


class Fitted(NamedTuple):
    """A learned rival and how it came about."""

    learner: Any  # the best on the validation episodes, or the last without validation
    state: RivalState
    rows: list[Row]  # one per iteration and one per validation


def settings(name: str, cfg: AgentConfig) -> PPORivalConfig | CPOConfig | SACConfig | LambdaConfig:
    """A rival's sizes, rates and number of updates, as far as they have a counterpart the same as ours."""
    name = name.removesuffix(FOLLOWING)
    if name == "ppo":
        return PPORivalConfig(cfg.policy, cfg.ppo, cfg.rounds)
    if name == "cpo":
        # One step an iteration, and few of these: the paper's 0.01 would hardly leave the default plan.
        return CPOConfig(cfg.policy, cfg.ppo, cfg.rounds, radius=0.03)
    passes = cfg.rounds * cfg.ppo.epochs * (1.0 + cfg.imagined)  # ours: over real and imagined rows
    if name == "sac_lagrangian":
        return SACConfig(cfg.policy, cfg.ppo, passes, cfg.ppo.learning_rate, cfg.ppo.critic_rate)
    training = cfg.world_training
    return LambdaConfig(
        cfg.policy,
        cfg.ppo,
        PosteriorConfig(cfg.world.hidden, cfg.world.layers, training.learning_rate, training.batch),
        worlds=cfg.world.members,
        horizon=cfg.world.horizon,
        passes=passes,
        world_passes=training.epochs,
        penalty=cfg.ppo.multiplier_rate,  # so that prices rise as fast as ours
        penalty_growth=1e-5,
    )


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
) -> Fitted:
    """Learns by `cfg.iterations` rounds of collecting and improving; goes on where a killed run stopped.

    Args:
        adjacency: [I, I] row-normalised, who is next to whom.
    """
    method, chosen, task = METHODS[name], settings(name, cfg), task_of(name, adjacency, cfg)
    store = AgentStore(checkpoint_dir, _fingerprint(key, name, adjacency, cfg))
    start_key, drive_key, learn_key = jax.random.split(key, 3)
    blank = agents.blank_state(adjacency.shape[0], cfg)
    state, rows = store.restore(_first(method.start(start_key, task, blank, chosen)))
    make_step = step_maker(method, chosen, task, cfg)
    improve = jax.jit(lambda *inputs: method.improve(*inputs, task, chosen))
    units_of = jax.jit(lambda rollouts: measure_units(task, rollouts))
    done, capacity = int(state.iteration), min(cfg.replay, cfg.iterations)
    history = [_rollouts(store.remembered(index), cfg=cfg) for index in range(max(0, done - capacity), done)]
    if done == 0 and cfg.validate_every:
        state, rows = _validated(drive_key, state, rows, make_step, collect, cfg)
    for index in range(done, cfg.iterations):
        episodes = store.kept(index, _collecting(drive_key, state.learner, index, make_step, collect, cfg))
        history = [*history, _rollouts(episodes, cfg=cfg)][-capacity:]
        units = units_of(history[-1]) if index == 0 else state.units
        memory = remembered(history, capacity * cfg.episodes)
        learner, found = improve(jax.random.fold_in(learn_key, index), state.learner, memory, history[-1], units)
        state = state._replace(learner=learner, units=units, iteration=state.iteration + 1)
        row = verification.summary(_performance(episodes, cfg=cfg), cfg.limits)
        row |= {name: float(value) for name, value in found.items()}
        rows = [*rows, {"kind": "train", "iteration": index} | row]
        if cfg.validate_every and ((index + 1) % cfg.validate_every == 0 or index + 1 == cfg.iterations):
            state, rows = _validated(drive_key, state, rows, make_step, collect, cfg)
        store.save(index + 1, state, rows)
    store.close()
    return Fitted(state.best if cfg.validate_every else state.learner, state, rows)


def train_rival(name: str, seed: int, cfg: AgentConfig, site: Site, folder: Path) -> tuple[Any, list[Row]]:
    """A rival of one seed and its learning curve, on hours drawn with the same seed as ours."""
    collect = learning_episodes(seed, site, folder)
    adjacency = jnp.asarray(agent_road.adjacency(site.road.network))
    fitted = fit(jax.random.key(seed), name, collect, adjacency, cfg, folder / f"seed{seed}")
    (folder / f"seed{seed}" / "curve.json").write_text(json.dumps(fitted.rows, indent=1, default=str))
    return fitted.learner, fitted.rows


def evaluate_rival(
    name: str,
    seed: int,
    learner: Any,
    cfg: AgentConfig,
    site: Site,
    scenarios: Sequence[Scenario],
    folder: Path,
) -> tuple[list, Row]:
    """Episodes without exploration; there is no certificate to report."""
    task = task_of(name, jnp.asarray(agent_road.adjacency(site.road.network)), cfg)
    step = step_maker(METHODS[name], settings(name, cfg), task, cfg)(jax.random.key(seed), learner, False)
    method = agent_road.agent_method(name, step, site, scenarios, folder)
    return evaluation.evaluate(method, scenarios, folder, site.workers, site.console), {}


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


_performance = jax.jit(verification.performance, static_argnames="cfg")
_rollouts = jax.jit(trajectories, static_argnames="cfg")


def _first(learner: Any) -> RivalState:
    units = Units(jnp.zeros(()), jnp.ones(()))
    return RivalState(learner, units, learner, jnp.full(2, -jnp.inf), jnp.zeros((), jnp.int32))


def _collecting(
    key: Array, learner: Any, index: int, make_step: MakeStep, collect: Collect, cfg: AgentConfig
) -> Callable[[], list[Episode]]:
    seed = cfg.first_seed + index * cfg.episodes
    return lambda: collect(make_step(key, learner, True), cfg.episodes, seed)


def _validated(
    key: Array, state: RivalState, rows: list[Row], make_step: MakeStep, collect: Collect, cfg: AgentConfig
) -> tuple[RivalState, list[Row]]:
    """Drives the validation episodes without exploration and keeps the learner if none was better; the first, too."""
    step = make_step(key, state.learner, False)
    episodes = replay.stack(collect(step, cfg.validation_episodes, cfg.validation_seed))
    measured = _performance(episodes, cfg=cfg)
    row = {"kind": "validation", "iteration": int(state.iteration)} | verification.summary(measured, cfg.limits)
    score = verification.merit(measured)
    is_kept = verification.is_better(score, state.best_score)
    if is_kept:
        state = state._replace(best=state.learner, best_score=jnp.asarray(score))
    return state, [*rows, row | {"is_kept": is_kept}]


def _fingerprint(key: Array, name: str, adjacency: Array, cfg: AgentConfig) -> str:
    """Tells whether a checkpoint belongs to this run: same rival and settings, same key, same road."""
    return store.key("learning", name, cfg, learned_from(name, cfg), jax.random.key_data(key), adjacency, length=64)
