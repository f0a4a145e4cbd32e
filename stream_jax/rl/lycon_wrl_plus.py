"""LyCon-WRL+: learns to control a road safely, inside a learned world, from episodes that someone else collects.

Section 4.3 and Algorithm 1, Phase 4, in the order that makes it sound: collect, world model, imagination and PPO with
multipliers, L, margin on episodes that neither has seen, and again. `learning` runs the loop; everything that learns is
compiled.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax import store
from stream_jax.rl import agent as agents
from stream_jax.rl import improvement, learning, lyapunov, ppo, trial, verification, world_model
from stream_jax.rl.agent import Agent, AgentConfig, Decision, act
from stream_jax.rl.agent_store import AgentStore
from stream_jax.rl.episodes import Episode, flat_transitions
from stream_jax.rl.learning import Algorithm, Collect, PolicyStep, Row, Run
from stream_jax.rl.ppo import Learner
from stream_jax.rl.state import make_state
from stream_jax.types import CityView, RLState

__all__ = ["Agent", "AgentConfig", "AgentState", "Decision", "Episode", "Fitted", "act", "fit", "improve", "start"]

TYPICAL_STATES = 256  # that say what uncertainties usually are


class AgentState(NamedTuple):
    """Everything that learning carries from iteration to iteration, besides the episodes."""

    agent: Agent
    optimiser: Any
    multipliers: Array  # [C]
    reward_unit: Array  # [2] of the first episodes: a unit must not move while values are learned in it


class Fitted(NamedTuple):
    """A learned controller and how it came about."""

    agent: Agent  # the best on the validation episodes, or the last without validation
    run: Run
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
    """Learns by `cfg.iterations` rounds of collecting and improving; with `checkpoint_dir` it survives a kill.

    Args:
        adjacency: [I, I] row-normalised, who is next to whom.
        trial_collect: drives the hours of the trial, None: like all others.
        first_dir: keeps the first episodes, for agents of one key that are equal in `trial.first_settings`.
        trial_dir: keeps the scores of the trial, for agents that are equal in `trial.settings`.
    """
    store = AgentStore(checkpoint_dir, _fingerprint(key, adjacency, cfg), first_dir, trial_dir)
    ours = algorithm(adjacency, cfg, trial_collect or collect)
    learned = learning.learn(key, ours, collect, cfg, store, progress)
    return Fitted(learned.learner.agent, learned.run, learned.rows)


def algorithm(adjacency: Array, cfg: AgentConfig, trial_collect: Collect) -> Algorithm:
    """LyCon-WRL+ as the loop runs it; what learning begins with is validated with the filter of the first iteration."""

    def tried(key: Array, state: AgentState, store: AgentStore) -> tuple[AgentState, list[Row]]:
        def drive(agent: Agent) -> list[Episode]:
            step = policy_step(key, agent, adjacency, cfg, explore=False)
            return trial_collect(step, cfg.trial.hours, cfg.trial.first_seed)

        agent, rows = trial.choose(state.agent, drive, cfg, store.scores)
        return state._replace(agent=agent), rows

    return Algorithm(
        start=lambda key: start(key, adjacency, cfg),
        act=lambda key, state, explore: policy_step(key, state.agent, adjacency, cfg, explore),
        improve=lambda key, state, _, memory: improve(key, state, memory, adjacency, cfg),
        judge=lambda state, episodes: verification.verify(state.agent, episodes, adjacency, cfg),
        prepare=tried if cfg.trial.hours else None,
        opening=lambda before, after: after._replace(agent=after.agent._replace(policy=before.agent.policy)),
    )


def start(key: Array, adjacency: Array, cfg: AgentConfig) -> AgentState:
    """The state before the first episode; its agent proposes the default plan."""
    agent = agents.init(key, adjacency, cfg)
    learner = ppo.start(agent.policy, cfg.ppo)
    return AgentState(agent, learner.optimiser, learner.multipliers, jnp.array([0.0, 1.0]))


def improve(
    key: Array, state: AgentState, memory: list[Episode], adjacency: Array, cfg: AgentConfig
) -> tuple[AgentState, Row]:
    """One iteration of learning from stacked episodes, the newest last and collected by `state.agent`."""
    world_key, typical_key, starts_key, learn_key, lyapunov_key, margin_key = jax.random.split(key, 6)
    fresh, old = memory[-1], state.agent
    measured = learning.performance(fresh, cfg=cfg)
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
    return AgentState(agent, learner.optimiser, learner.multipliers, unit), row


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
_flat_transitions = jax.jit(flat_transitions, static_argnames=("limits", "cfg"))


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
