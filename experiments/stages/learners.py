"""What the control stage has to know of a controller that learns: the same functions for ours and for every rival."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.evaluation import drives
from experiments.stages import agent_road, agents, rivals
from experiments.stages.agent_road import Site
from sim.loop import Episode
from sim.session import Scenario
from stream_jax.rl import lycon_wrl_plus, replay, trial
from stream_jax.rl.agent import AgentConfig
from stream_jax.rl.learning import PolicyStep
from stream_jax.task import ActionSpace

Certify = Callable[[Any, Any, jax.Array, AgentConfig], dict]  # agent, stacked episodes, adjacency, config -> row


class Kind(NamedTuple):
    """A controller that learns. An agent is whatever drives, with the best weights of its learning."""

    train: Callable[[int, AgentConfig, Site, Path], tuple[Any, list[dict]]]  # seed, config, site, folder
    policy: Callable[[jax.Array, Any, jax.Array, AgentConfig], PolicyStep]  # key, agent, adjacency; no exploration
    blank: Callable[[jax.Array, AgentConfig], Any]  # adjacency, config -> an agent that has learned nothing
    weights: Callable[[Any], Any]  # all that an agent acts by: what its file holds
    with_weights: Callable[[Any, Any], Any]
    described: Callable[[AgentConfig], dict]  # everything that it is learned with
    learned_from: Callable[[AgentConfig], Any]  # what names its folder, besides the config
    first_plan: Callable[[ActionSpace], str] | None  # folder of the plan that an agent which kept its start drives as
    certify: Certify | None  # what its certificate came to; None: it promises nothing


def kind_of(name: str) -> Kind:
    """The functions of a controller by its name."""
    return _rival(name) if name in agents.RIVALS else _ours()


def evaluate(
    name: str, seed: int, agent: Any, cfg: AgentConfig, site: Site, scenarios: Sequence[Scenario], folder: Path
) -> tuple[list[Episode], dict]:
    """Episodes without exploration, and the certificate as it turned out on them."""
    kind, adjacency = kind_of(name), jnp.asarray(agent_road.adjacency(site.road.network))
    step = kind.policy(jax.random.key(seed), agent, adjacency, cfg)
    method = agent_road.agent_method(name, step, site, scenarios, folder)
    episodes = drives.evaluate(method, scenarios, folder, site.workers, site.console)
    if not episodes or kind.certify is None:
        return episodes, {}
    decided = [agent_road.decision_file(folder, one.index, one.scenario) for one in episodes]
    pairs = zip(episodes, decided, strict=True)
    learned = replay.stack([agent_road.rebuilt(one, decisions, site.days) for one, decisions in pairs])
    return episodes, kind.certify(agent, learned, adjacency, cfg)


def train(name: str, seed: int, cfg: AgentConfig, site: Site, folder: Path) -> tuple[Any, list[dict]]:
    """An agent of one seed and its learning curve, which is kept beside it; goes on where a killed run stopped."""
    agent, curve = kind_of(name).train(seed, cfg, site, folder)
    (folder / f"seed{seed}" / "curve.json").write_text(json.dumps(curve, indent=1, default=str))
    return agent, curve


def _ours() -> Kind:
    return Kind(
        train=agents.train_agent,
        policy=partial(lycon_wrl_plus.policy_step, explore=False),
        blank=agents.start,
        weights=lambda agent: agent,
        with_weights=lambda _, weights: weights,
        described=dataclasses.asdict,
        learned_from=lambda _: (trial.FOLLOWING, agents.TRIED),
        first_plan=None,
        certify=agents.certificate_rows,
    )


def _rival(name: str) -> Kind:
    return Kind(
        train=partial(rivals.train_rival, name),
        policy=partial(rivals.policy, name),
        blank=partial(rivals.start, name),
        weights=rivals.acting,
        with_weights=rivals.with_acting,
        described=partial(rivals.as_dict, name),
        learned_from=partial(rivals.learned_from, name),
        first_plan=partial(rivals.first_plan, name),
        certify=None,
    )
