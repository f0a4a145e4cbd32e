"""LyCon-WRL+: learns to control a road safely, inside a learned world, from episodes that someone else collects.

Section 4.3 and Algorithm 1, Phase 4, in the order that makes it sound: collect, world model, imagination and PPO with
multipliers, L, margin on episodes that neither has seen, and again. The road is reached through an injected `collect`
only; everything that learns is compiled.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from rich.console import Console
from rich.progress import Progress

from stream_jax import store
from stream_jax.rl import agent as agents
from stream_jax.rl import improvement, lyapunov, ppo, replay, trial, verification, world_model
from stream_jax.rl.agent import Agent, AgentConfig, Decision, act
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.episodes import Episode, flat_transitions
from stream_jax.rl.ppo import Learner
from stream_jax.rl.state import make_state
from stream_jax.types import CityView, RLState

__all__ = ["Agent", "AgentConfig", "AgentState", "Decision", "Episode", "Fitted", "act", "fit", "improve", "start"]

# seeds [E], step [] or [E], x [E, I, 10], view [E, ...], plan in force [E, I, A], clock [E, 5] -> leaves [E, ...]
PolicyStep = Callable[[np.ndarray, Any, Array, CityView, Array, Array], Decision]
Collect = Callable[[PolicyStep, int, int], list[Episode]]  # policy, number of episodes, seed of the first
Row = dict[str, Any]
TYPICAL_STATES = 256  # that say what uncertainties usually are


class AgentState(NamedTuple):
    """Everything that learning carries from iteration to iteration, besides the episodes."""

    agent: Agent
    optimiser: Any
    multipliers: Array  # [C]
    reward_unit: Array  # [2] of the first episodes: a unit must not move while values are learned in it
    best: Agent  # on the validation episodes
    best_score: Array  # [2] its `verification.merit`, compared in this order
    iteration: Array  # [] int32, iterations done


class Fitted(NamedTuple):
    """A learned controller and how it came about."""

    agent: Agent  # the best on the validation episodes, or the last without validation
    state: AgentState
    rows: list[Row]  # one for the trial, each iteration and each validation


def fit(
    key: Array,
    collect: Collect,
    adjacency: Array,
    cfg: AgentConfig,
    checkpoint_dir: Path | str | None = None,
    progress: bool = False,
    trial_collect: Collect | None = None,
    first_dir: Path | str | None = None,
    trial_dir: Path | str | None = None,
) -> Fitted:
    """Learns by `cfg.iterations` rounds of collecting and improving.

    With `checkpoint_dir` a run that was killed goes on where it was and ends in the same bits, as long as `collect`
    gives the same episodes for the same policy and seed; episodes that were complete are not collected again.

    Args:
        adjacency: [I, I] row-normalised, who is next to whom.
        trial_collect: drives the hours of the trial, None: like all others.
        first_dir: keeps the first episodes, for agents of one key that are equal in `trial.first_settings`.
        trial_dir: keeps the scores of the trial, for agents that are equal in `trial.settings`.
    """
    store = AgentStore(checkpoint_dir, _fingerprint(key, adjacency, cfg), first_dir, trial_dir)
    start_key, drive_key, learn_key = jax.random.split(key, 3)
    state, rows = store.restore(start(start_key, adjacency, cfg))

    def collected(index: int) -> Episode:
        step = policy_step(drive_key, state.agent, adjacency, cfg, explore=True)
        seed = cfg.first_seed + index * cfg.episodes
        return store.kept(index, lambda: collect(step, cfg.episodes, seed))

    def tried(agent: Agent) -> list[Episode]:
        step = policy_step(drive_key, agent, adjacency, cfg, explore=False)
        return (trial_collect or collect)(step, cfg.trial.hours, cfg.trial.first_seed)

    done = int(state.iteration)
    memory = [store.remembered(index) for index in range(max(0, done - cfg.replay), done)]
    if done == 0 and not rows:
        if cfg.trial.hours:
            agent, rows = trial.choose(state.agent, tried, cfg, store.scores)
            state = state._replace(agent=agent)
            store.save(0, state, rows)
    with _progress_bar(progress) as bar:
        task = bar.add_task("control", total=cfg.iterations, completed=done)
        for index in range(done, cfg.iterations):
            memory, first = [*memory, collected(index)][-cfg.replay :], state.agent.policy
            state, row = improve(jax.random.fold_in(learn_key, index), state, memory, adjacency, cfg)
            rows = [*rows, {"kind": "train", "iteration": index} | row]
            if cfg.validate_every and index == 0:  # what learning began with, now that there is a filter
                begun = state._replace(agent=state.agent._replace(policy=first), iteration=jnp.zeros((), jnp.int32))
                begun, rows = _validated(drive_key, begun, rows, collect, adjacency, cfg)
                state = state._replace(best=begun.best, best_score=begun.best_score)
            if cfg.validate_every and ((index + 1) % cfg.validate_every == 0 or index + 1 == cfg.iterations):
                state, rows = _validated(drive_key, state, rows, collect, adjacency, cfg)
            store.save(index + 1, state, rows)
            bar.advance(task)
    store.close()
    return Fitted(state.best if cfg.validate_every else state.agent, state, rows)


def start(key: Array, adjacency: Array, cfg: AgentConfig) -> AgentState:
    """The state before the first episode; its agent proposes the default plan."""
    agent = agents.init(key, adjacency, cfg)
    learner = ppo.start(agent.policy, cfg.ppo)
    unit, nothing = jnp.array([0.0, 1.0]), jnp.full(2, -jnp.inf)
    return AgentState(agent, learner.optimiser, learner.multipliers, unit, agent, nothing, jnp.zeros((), jnp.int32))


def improve(
    key: Array, state: AgentState, memory: list[Episode], adjacency: Array, cfg: AgentConfig
) -> tuple[AgentState, Row]:
    """One iteration of learning from stacked episodes, the newest last and collected by `state.agent`."""
    world_key, typical_key, starts_key, learn_key, lyapunov_key, margin_key = jax.random.split(key, 6)
    fresh, old = memory[-1], state.agent
    measured = _performance(fresh, cfg=cfg)
    row = verification.summary(measured, cfg.limits)
    if bool(old.fitted):
        row |= verification.verify(old, fresh, adjacency, cfg)
    real = _real_rollouts(old, fresh, adjacency, cfg=cfg)
    seen = [_split(batch, cfg)[0] for batch in memory]
    steps = _joined([_flat_transitions(batch, limits=cfg.limits, cfg=cfg.state) for batch in seen])
    first = None if not bool(old.fitted) else old.world
    world = world_model.fit(world_key, steps, adjacency, cfg.world, cfg.world_training, first)
    agent = old._replace(world=world, fitted=jnp.array(True))
    agent = agent._replace(typical=_typical(agent, _some(typical_key, steps.state, TYPICAL_STATES), adjacency, cfg=cfg))
    unit = state.reward_unit if bool(old.fitted) else _reward_units(real, agent, cfg=cfg)
    starts = _starts(starts_key, steps.state, fresh, cfg)
    learner = Learner(agent.policy, state.optimiser, state.multipliers)
    learner, report = _learn(learn_key, learner, agent, real, starts, measured.cost, unit, adjacency, cfg=cfg)
    agent = agent._replace(policy=learner.params)
    agent = agent._replace(lyapunov=_fit_lyapunov(lyapunov_key, agent, seen, starts, adjacency, cfg))
    agent = agent._replace(margin=_margin(margin_key, agent, _split(fresh, cfg)[1], adjacency, cfg=cfg))
    row |= _report_row(report, learner, agent, cfg)
    new = state._replace(agent=agent, optimiser=learner.optimiser, multipliers=learner.multipliers, reward_unit=unit)
    return new._replace(iteration=state.iteration + 1), row


def policy_step(key: Array, agent: Agent, adjacency: Array, cfg: AgentConfig, explore: bool) -> PolicyStep:
    """What a host loop calls at every control step; draws depend on an episode's seed and step, not on its batch."""

    def step(seeds: np.ndarray, time: Any, x: Array, view: CityView, plan: Array, clock: Array) -> Decision:
        times = np.broadcast_to(np.asarray(time), np.shape(seeds))
        made = _decide(
            key, np.asarray(seeds), times, agent, (x, view, plan, clock), adjacency, cfg=cfg, explore=explore
        )
        return jax.tree.map(np.asarray, made)

    return step


def decide(
    key: Array,
    seeds: Array,
    times: Array,
    agent: Agent,
    seen: tuple[Array, CityView, Array, Array],
    adjacency: Array,
    cfg: AgentConfig,
    explore: bool,
) -> Decision:
    """`act` for a batch of roads, leaves [E, ...]. Args: seen is x, view, plan and clock."""

    def one(seed: Array, time: Array, x: Array, view: CityView, plan: Array, clock: Array) -> Decision:
        draw_key = jax.random.fold_in(jax.random.fold_in(key, seed), time // cfg.hold)
        return act(draw_key, agent, make_state(x, view, plan, clock, cfg.state), plan, adjacency, cfg, explore)

    return jax.vmap(one)(seeds, times, *seen)


_decide = jax.jit(decide, static_argnames=("cfg", "explore"))
_learn = jax.jit(improvement.learn, static_argnames="cfg")
_real_rollouts = jax.jit(improvement.real_rollouts, static_argnames="cfg")
_reward_units = jax.jit(improvement.reward_units, static_argnames="cfg")
_typical = jax.jit(improvement.typical_uncertainty, static_argnames="cfg")
_imagine = jax.jit(improvement.imagine, static_argnames="cfg")
_decrease_data = jax.jit(improvement.decrease_data, static_argnames="cfg")
_margin = jax.jit(verification.margin, static_argnames="cfg")
_performance = jax.jit(verification.performance, static_argnames="cfg")
_flat_transitions = jax.jit(flat_transitions, static_argnames=("limits", "cfg"))


def _validated(
    key: Array, state: AgentState, rows: list[Row], collect: Collect, adjacency: Array, cfg: AgentConfig
) -> tuple[AgentState, list[Row]]:
    """Drives the validation episodes without exploration and keeps the agent if none was better."""
    step = policy_step(key, state.agent, adjacency, cfg, explore=False)
    episodes = replay.stack(collect(step, cfg.validation_episodes, cfg.validation_seed))
    measured = _performance(episodes, cfg=cfg)
    row = {"kind": "validation", "iteration": int(state.iteration)} | verification.summary(measured, cfg.limits)
    row |= verification.verify(state.agent, episodes, adjacency, cfg)
    score = verification.merit(measured)
    is_kept = verification.is_better(score, state.best_score)
    if is_kept:
        state = state._replace(best=state.agent, best_score=jnp.asarray(score))
    return state, [*rows, row | {"is_kept": is_kept}]


def _split(episodes: Episode, cfg: AgentConfig) -> tuple[Episode, Episode]:
    """The episodes that world model and L learn from, and those held out for the margin."""
    count = episodes.x.shape[0]
    kept = min(max(1, count - math.ceil(cfg.held_out * count)), count - 1)
    return tuple(jax.tree.map(lambda leaf, cut=cut: leaf[cut], episodes) for cut in (slice(kept), slice(kept, None)))


def _starts(key: Array, seen: RLState, fresh: Episode, cfg: AgentConfig) -> RLState:
    """States to imagine from, leaves [rounds, R, ...]."""
    count = round(cfg.imagined * fresh.log_prob.shape[0] * fresh.log_prob.shape[1] / cfg.world.horizon)
    picked = _some(key, seen, cfg.rounds * count)
    return jax.tree.map(lambda leaf: leaf.reshape(cfg.rounds, count, *leaf.shape[1:]), picked)


def _some(key: Array, seen: RLState, count: int) -> RLState:
    rows = np.asarray(jax.random.randint(key, (count,), 0, seen.local.shape[0]))
    return jax.tree.map(lambda leaf: leaf[rows], seen)


def _fit_lyapunov(
    key: Array, agent: Agent, seen: list[Episode], starts: RLState, adjacency: Array, cfg: AgentConfig
) -> lyapunov.LyapunovParams:
    """L from the real steps of every iteration and from steps imagined under the new policy."""
    imagine_key, fit_key = jax.random.split(key)
    rollouts = [_real_rollouts(agent, episodes, adjacency, cfg=cfg) for episodes in seen]
    if starts.local.shape[1]:
        dreamt = jax.tree.map(lambda leaf: leaf[0], starts)
        rollouts.append(_imagine(imagine_key, agent, dreamt, adjacency, cfg=cfg))
    data = _joined([_decrease_data(agent, rollout, adjacency, cfg=cfg) for rollout in rollouts])
    examples = (data.x, data.x_next, data.violation, data.mu)
    return lyapunov.fit(
        fit_key, *examples, cfg.lyapunov, cfg.lyapunov_training, weight=data.weight, init_params=agent.lyapunov
    )


def _joined(trees: list[Any]) -> Any:
    """One after another, on the host: the number of iterations differs from call to call and must not be compiled."""
    return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *trees)


def _report_row(report: improvement.LearnReport, learner: Learner, agent: Agent, cfg: AgentConfig) -> Row:
    losses = {f"loss_{name}": float(value) for name, value in report.losses._asdict().items()}
    prices = {f"multiplier_{name}": float(m) for name, m in zip(cfg.limits.names, learner.multipliers, strict=True)}
    return (
        losses
        | prices
        | {
            "imagined_alive": float(report.alive),
            "imagined_reward": float(report.imagined_reward),
            "std": float(jnp.exp(learner.params.log_std).mean()),
            "next_margin": float(agent.margin),
        }
    )


def _fingerprint(key: Array, adjacency: Array, cfg: AgentConfig) -> str:
    """Tells whether a checkpoint belongs to this run: same settings, same key, same road."""
    return store.key("learning", cfg, jax.random.key_data(key), adjacency, length=64)


def _progress_bar(wanted: bool) -> Progress:
    console = Console(stderr=True)  # shown only on a terminal, so that logs stay readable
    return Progress(console=console, disable=not (wanted and console.is_terminal))
