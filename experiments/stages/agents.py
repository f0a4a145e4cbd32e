"""LyCon-WRL+ and its ablations on the road: trained for each seed, then evaluated like every other controller."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments import presets
from experiments.methods import catalogue
from experiments.stages import agent_road
from experiments.stages.agent_road import Site
from sim import loop as sim_loop
from sim.demand import DemandLevel
from stream_jax import store
from stream_jax.rl import bounds, certificate, lyapunov, lycon_wrl_plus, trial, verification, world_model
from stream_jax.rl.agent import Agent, AgentConfig, TrialConfig
from stream_jax.rl.episodes import Episode, flat_transitions
from stream_jax.rl.learning import Collect
from stream_jax.rl.lyapunov import LyapunovParams
from stream_jax.rl.safety import DEFAULT_PLAN
from stream_jax.task import GREENS, ActionSpace, violation

OURS = "lycon_wrl_plus"
FOLLOWING = ":following"  # a rival that begins with the plan that ours begins with, instead of the default plan
RECORDS = catalogue.records(catalogue.LEARNERS)
RIVALS = tuple(name for name in catalogue.names(catalogue.LEARNERS) if name.split(":")[0] != OURS)
LEARNING_PART = "val"  # of the recording: the upstream models have not been trained on it, and it is not the test
# What an ablation changes; every one of them is trained anew with the same budget.
VARIANTS = {name: dict(one.variants.get(name.partition(":")[2], {})) for one in RECORDS.values() for name in one.names}
# How the cells' uncertainties add up at an intersection; ours is the kernel exp(-distance / length).
COVARIANCES = {name: changes.pop("covariance") for name, changes in VARIANTS.items() if "covariance" in changes}
TRIED = 0.5  # share of the busy hours in which plans are tried, the busiest: the others say little about them
TIGHTENING = 0.85  # agents learn to keep this share of the limits on queue and wait, so that noise does not break them


def agent_config(name: str, preset: str, level: DemandLevel, action: ActionSpace = GREENS) -> AgentConfig:
    """The preset's agent with the change that a variant's name stands for and the limits of a demand level.

    The plan of the trial is one of greens: who sets prices has no trial, and its episodes are there to learn from.
    """
    cfg, changes = presets.AGENTS[preset], dict(VARIANTS[name])
    reward = dataclasses.replace(cfg.reward, **changes.pop("reward", {}))
    limits = dataclasses.replace(
        level.limits, queue=TIGHTENING * level.limits.queue, wait=TIGHTENING * level.limits.wait
    )
    if name in RIVALS or action != GREENS:
        iterations = cfg.iterations + -(-trial.episodes(cfg) // cfg.episodes)
        validate_every = round(cfg.validate_every * iterations / cfg.iterations)  # as often as ours
        changes |= {"iterations": iterations, "validate_every": validate_every, "trial": TrialConfig()}
    return dataclasses.replace(cfg, limits=limits, judged_by=level.limits, reward=reward, action=action, **changes)


def learning_episodes(seed: int, site: Site, folder: Path, busiest: float = 1.0) -> Collect:
    """What a learner of this seed, ours or a rival, collects its experience with."""
    return agent_road.collector(site, LEARNING_PART, folder / "trips", offset=1_000_000 * seed, busiest=busiest)


def start(adjacency: jax.Array, cfg: AgentConfig) -> Agent:
    """A controller of ours that has learned nothing, for shapes."""
    return lycon_wrl_plus.start(jax.random.key(0), adjacency, cfg).agent


def train_agent(seed: int, cfg: AgentConfig, site: Site, folder: Path) -> tuple[Agent, list[dict]]:
    """A controller of one seed and its learning curve; goes on where a killed run stopped."""
    meet = partial(learning_episodes, seed, site, folder)
    adjacency = jnp.asarray(agent_road.adjacency(site.road.network))
    # Agents that begin alike find each other's episodes: folders of one road, demand and city have the same parent.
    fitted = lycon_wrl_plus.fit(
        jax.random.key(seed),
        meet(),
        adjacency,
        cfg,
        folder / f"seed{seed}",
        trial_collect=meet(busiest=TRIED),
        first_dir=folder.parent / f"first-{store.key('learning', trial.first_settings(cfg), TRIED)}" / f"seed{seed}",
        trial_dir=folder.parent.parent / f"trial-{trial_digest(cfg, site)}" / f"seed{seed}",
    )
    return fitted.agent, fitted.rows


def trial_digest(cfg: AgentConfig, site: Site) -> str:
    """Changes with whatever a trial depends on: its plans hear the road alone, so what the city says is left out."""
    road = site.road
    drawn = road.flow, road.incidents, road.starts[LEARNING_PART], TRIED
    driven = store.VERSIONS["episode"], site.vehicles_per_hour, road.planner.cfg
    return store.key("trial", driven, trial.settings(cfg), drawn)


def decrease_share(agent: Agent, episodes: Sequence[sim_loop.Episode], cfg: AgentConfig) -> float:
    """Share of control steps at which an agent's L fell as its condition asks, whoever drove.

    What happened is judged, not what a world model foresaw: other controllers have no plan to ask it about.
    """
    judged = _falls(agent.lyapunov, jnp.stack([agent_road.physical_rows(one.road) for one in episodes]), cfg=cfg)
    return float(judged.mean())


@partial(jax.jit, static_argnames="cfg")
def _falls(params: LyapunovParams, x: jax.Array, cfg: AgentConfig) -> jax.Array:
    """[E, T] bool. Args: x [E, T + 1, I, 10]."""
    value = jax.vmap(jax.vmap(partial(lyapunov.value, params, cfg=cfg.lyapunov)))(x)
    broken = jax.vmap(jax.vmap(lambda one: violation(one, cfg.limits)))(x[:, :-1])
    return lyapunov.shortfall(value[:, :-1], value[:, 1:], 0.0, broken, cfg.lyapunov) <= 0.0


def certificate_rows(
    agent: Agent, episodes: Episode, adjacency: jax.Array, cfg: AgentConfig
) -> dict[str, float | bool | str]:
    """What the certificate promised and what happened; shares are of control steps.

    Bounds hold on the ball that the episodes' states lie in.
    """
    row = verification.verify(agent, episodes, adjacency, cfg)
    x = np.asarray(episodes.x, np.float64)
    steps = flat_transitions(episodes, cfg.limits, cfg.state)
    error = world_model.model_error(agent.world, steps, adjacency, cfg.world)
    radius = float(np.sqrt(np.square(x).sum((-2, -1))).max())
    slope = bounds.lipschitz_on_ball(agent.lyapunov, radius, x.shape[-2], cfg.lyapunov)
    jacobian = bounds.world_jacobian(agent.world, adjacency, cfg.world, cfg.action.size).state
    return row | {
        "filtered_share": float(verification.changed(episodes).mean()),
        "uncertified_share": float(1.0 - np.mean(episodes.certificate.certified)),
        "default_plan_share": float((np.asarray(episodes.certificate.source) == DEFAULT_PLAN).mean()),
        "model_error": float(error.absolute),
        "model_error_relative": float(error.relative),
        "radius": radius,
        "lipschitz": slope,
        "world_jacobian": jacobian,
        "paper_epsilon_star": certificate.paper_epsilon_star(row["violation"], slope, jacobian, cfg.lyapunov),
    }
