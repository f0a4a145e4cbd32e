"""The controller as it acts: a policy proposes, the safety filter disposes.

Section 4.3; Algorithm "Lyapunov-Safe Action Selection" is the filter's. Everything an action needs is one pytree, so a
batch of roads is a vmap and a controller can be stored, compared and frozen.
"""

import dataclasses
from typing import Literal, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.fit import TrainConfig
from stream_jax.rl import lyapunov, policy, safety, world_model
from stream_jax.rl.lyapunov import LyapunovConfig, LyapunovParams
from stream_jax.rl.objective import RewardConfig
from stream_jax.rl.policy import PolicyConfig, PolicyParams, Uncertainty
from stream_jax.rl.ppo import PPOConfig
from stream_jax.rl.safety import FilterConfigs, FilterParams, SafetyConfig
from stream_jax.rl.state import CLOCK, StateConfig, make_state
from stream_jax.rl.world_model import WorldParams
from stream_jax.rl.world_network import Scaling, WorldConfig, init_network
from stream_jax.task import GREENS, LOCAL, ActionSpace, Limits
from stream_jax.types import Certificate, CityView, RLState


@dataclasses.dataclass(frozen=True)
class TrialConfig:
    """How a plan is tried against the default plan before learning; none of it is in the paper."""

    hours: int = 0  # that both drive; 0 leaves the trial out and begins with the default plan
    doubt: float = 2.0  # standard errors by which the default plan has to be better to be kept
    price: float = 3.0  # of being at a limit, against the reward
    worst: float = 6.0  # of an hour that is broken throughout, on top of the price
    first_seed: int = 600_000

    def __post_init__(self) -> None:
        if self.hours < 0 or self.hours == 1 or self.doubt < 0:
            raise ValueError("a trial needs two hours or more, or none, and a doubt of at least 0")


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """Everything that learning and acting need besides the road; the parts say what is the paper's."""

    state: StateConfig = StateConfig()
    policy: PolicyConfig = PolicyConfig()
    reward: RewardConfig = RewardConfig()
    trial: TrialConfig = TrialConfig()
    ppo: PPOConfig = PPOConfig()
    world: WorldConfig = WorldConfig()
    world_training: TrainConfig = TrainConfig(learning_rate=1e-3, batch=64, epochs=60, patience=8)
    lyapunov: LyapunovConfig = LyapunovConfig()
    lyapunov_training: TrainConfig = TrainConfig(learning_rate=1e-3, batch=256, epochs=30, patience=5)
    safety: SafetyConfig = SafetyConfig()
    limits: Limits = Limits()  # that learning and the filter keep to
    judged_by: Limits | None = None  # that races and validations count broken minutes by; None: the same
    action: ActionSpace = GREENS  # what intersections are told; files older than `PRICES` do not say it
    forecast_horizon: int = 4  # steps H of the city's forecast
    iterations: int = 12
    episodes: int = 8  # collected per iteration
    # Control steps for which exploration keeps its direction on the road: what a plan does to queues takes minutes to
    # show, and the noise of single steps averages out before. The likelihood of each step is the same as without.
    hold: int = 1
    rounds: int = 4  # of imagination and PPO per iteration
    imagined: float = 1.0  # imagined control steps for each real one
    filter_imagined: bool = False  # the filter costs as much as ten imagined steps
    replay: int = 20  # iterations whose episodes the world model and L learn from
    held_out: float = 0.25  # share of the episodes that they do not see: the margin's
    # "conformal" covers a fresh block of steps; "mean" is smaller and enough for the drift bound on average
    margin: Literal["conformal", "mean"] = "conformal"
    margin_alpha: float = 0.1
    margin_block: int = 4  # consecutive steps that count as one, since they depend on each other
    target: float = 0.2  # mean violation that a certificate is asked for
    validation_episodes: int = 4  # without exploration, always the same seeds; the best controller on them is kept
    validate_every: int = 3  # iterations; 0 keeps the last controller
    first_seed: int = 10_000  # iteration k collects seeds first_seed + k episodes, ...
    validation_seed: int = 5_000

    def __post_init__(self) -> None:
        if min(self.iterations, self.rounds, self.hold, self.replay, self.margin_block, self.forecast_horizon) < 1:
            raise ValueError("iterations, rounds, hold, replay, margin_block and forecast_horizon must be at least 1")
        if self.episodes < 2 or not (0 < self.held_out < 1 and self.imagined >= 0 and 0 < self.margin_alpha < 1):
            raise ValueError("episodes must be at least 2, held_out and margin_alpha inside (0, 1), imagined >= 0")
        if self.ppo.discount != self.reward.discount:
            raise ValueError("ppo.discount and reward.discount must be equal, or the potential would not telescope")

    @property
    def goal(self) -> Limits:
        """The limits that a controller is chosen by."""
        return self.judged_by or self.limits


class Agent(NamedTuple):
    """A controller; nothing in it changes while it acts."""

    policy: PolicyParams
    world: WorldParams
    lyapunov: LyapunovParams
    margin: Array  # [] of the decrease condition; +inf certifies nothing
    typical: Uncertainty  # what the uncertainties usually are
    fitted: Array  # [] bool, False until the world model has seen data: then nothing is filtered


class Decision(NamedTuple):
    """What was done and what is needed to learn from it."""

    action: Array  # [I, A] executed
    proposed: Array  # [I, A] before the filter
    log_prob: Array  # [I] of what was proposed
    certificate: Certificate


def init(key: Array, adjacency: Array, cfg: AgentConfig) -> Agent:
    """A controller that has seen nothing: the default plan, explored around, unfiltered."""
    policy_key, world_key, lyapunov_key = jax.random.split(key, 3)
    state = blank_state(adjacency.shape[0], cfg)
    width = world_model.inputs(state, state.plan, adjacency).shape[-1]
    scaling = Scaling(jnp.zeros(width), jnp.ones(width), jnp.ones(LOCAL))
    world = WorldParams(init_network(world_key, width, cfg.world), scaling, jnp.array(jnp.inf))
    return Agent(
        policy=policy.init(policy_key, state, adjacency, cfg.policy, len(cfg.limits.bounds)),
        world=world,
        lyapunov=lyapunov.init(lyapunov_key, cfg.lyapunov),
        margin=jnp.array(jnp.inf),
        typical=Uncertainty(jnp.zeros(3), jnp.full(3, jnp.inf)),
        fitted=jnp.array(False),
    )


def blank_state(intersections: int, cfg: AgentConfig) -> RLState:
    """An empty road on an unremarkable day, for shapes."""
    flow = jnp.ones((intersections, cfg.forecast_horizon))
    view = CityView(flow, 0.0 * flow, jnp.ones(intersections), jnp.zeros(intersections))
    plan = jnp.zeros((intersections, cfg.action.size))
    return make_state(jnp.zeros((intersections, LOCAL)), view, plan, jnp.zeros(CLOCK), cfg.state)


def act(
    key: Array, agent: Agent, state: RLState, previous: Array, adjacency: Array, cfg: AgentConfig, explore: bool
) -> Decision:
    """One action for every intersection; vmap over keys, states and previous actions for several roads.

    Args:
        previous: [I, A] the action in force.
        explore: draws from the policy, wider where less is known; else its mean is proposed.
    """
    chex.assert_equal_shape([state.plan, previous])
    if explore:
        proposed, likelihood = policy.sample(
            key, agent.policy, state, widening(agent, state, adjacency, cfg), adjacency, cfg.policy
        )
    else:
        proposed = policy.mean_action(agent.policy, state, adjacency, cfg.policy)
        still = jnp.zeros(proposed.shape[0])
        likelihood = policy.log_prob(agent.policy, state, still, proposed, adjacency, cfg.policy)
    safe, certificate = filtered(agent, state, proposed, previous, adjacency, cfg)
    action = jnp.where(agent.fitted, safe, proposed)
    source = jnp.where(agent.fitted, certificate.source, safety.POLICY)
    return Decision(action, proposed, likelihood, certificate._replace(source=source))


def filtered(
    agent: Agent, state: RLState, proposed: Array, previous: Array, adjacency: Array, cfg: AgentConfig
) -> tuple[Array, Certificate]:
    """What the filter makes of a proposal."""
    judges = FilterParams(agent.world, agent.lyapunov)
    settings = FilterConfigs(cfg.world, cfg.lyapunov, cfg.safety)
    return safety.filter_action(judges, state, proposed, previous, agent.margin, adjacency, cfg.limits, settings)


def widening(agent: Agent, state: RLState, adjacency: Array, cfg: AgentConfig) -> Array:
    """The exploration's g(s), [I]."""
    return policy.boost(signals(agent, state, adjacency, cfg), agent.typical, cfg.policy)


def signals(agent: Agent, state: RLState, adjacency: Array, cfg: AgentConfig) -> Array:
    """[I, 3] the uncertainties that exploration weighs; the world model's is that about the policy's mean action."""
    meant = policy.mean_action(agent.policy, state, adjacency, cfg.policy)
    prediction = world_model.predict(agent.world, state, meant, adjacency, cfg.world)
    return policy.uncertainties(state, jnp.sqrt(prediction.mean.var(axis=0).mean(axis=-1)))
