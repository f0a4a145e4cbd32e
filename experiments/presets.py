"""The named presets: every size that the stages need, composed of the rooms' own configs.

The sizes of synthetic cities alone are elsewhere, in `data/synthetic_city.py`: that file has a command of its own, and
nothing of `data` imports `experiments`.
"""

import dataclasses

from experiments.cli.options import SIDES, RunOptions
from experiments.methods.catalogue import CONTROLLERS
from experiments.methods.detection.isolation_forest import IsolationForestConfig
from experiments.methods.detection.omni_anomaly import OmniAnomalyConfig
from experiments.methods.detection.pca import PcaConfig
from experiments.methods.detection.usad import UsadConfig
from experiments.methods.forecasting.ripcn import RipcnConfig
from sim.demand import DEMAND_LEVELS, DemandConfig
from sim.network import GridConfig
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.fit import TrainConfig
from stream_jax.flows import crfn_by
from stream_jax.flows.context import ContextConfig
from stream_jax.flows.crfn_by import FlowConfig
from stream_jax.gnn.pu_gat_plus import ForecasterConfig
from stream_jax.rl.agent import AgentConfig, TrialConfig
from stream_jax.rl.lyapunov import LyapunovConfig
from stream_jax.rl.objective import RewardConfig
from stream_jax.rl.policy import PolicyConfig
from stream_jax.rl.ppo import PPOConfig
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.world_network import WorldConfig

OURS = "lycon_wrl_plus"
TRAINING_LEVEL = "heavy"  # of demand, where agents learn; elsewhere the same controller is evaluated as it is


@dataclasses.dataclass(frozen=True)
class RivalConfigs:
    """Settings of rivals that a preset may make smaller than published, by their names."""

    isolation_forest: IsolationForestConfig = IsolationForestConfig()
    pca: PcaConfig = PcaConfig()
    usad: UsadConfig = UsadConfig()
    omni_anomaly: OmniAnomalyConfig = OmniAnomalyConfig()
    ripcn: RipcnConfig = RipcnConfig()


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """One run; written beside its results."""

    forecaster: ForecasterConfig = ForecasterConfig()
    training: TrainConfig = TrainConfig()
    conformal: ConformalConfig = ConformalConfig()
    flow: FlowConfig = FlowConfig()
    flow_training: TrainConfig = crfn_by.DEFAULT_TRAINING
    rivals: RivalConfigs = RivalConfigs()
    rival_training: TrainConfig = TrainConfig()  # of the forecasting rivals; its epochs are a limit
    rival_steps: int = 10**6  # after which a forecasting rival stops, if it had as many epochs as PU-GAT+
    seeds: int = 3
    max_folds: int = 3  # the last of a rolling-origin split
    first_seed: int = 0

    def folds(self, available: int) -> range:
        """The folds that are run: the last ones, which have the most data to learn from."""
        return range(max(available - self.max_folds, 0), available)


@dataclasses.dataclass(frozen=True)
class ControlConfig:
    """Sizes of the control stage."""

    grid: GridConfig = GridConfig()
    demand: DemandConfig = DemandConfig()
    episodes: int = 20  # of each controller at each level
    levels: tuple[str, ...] = (TRAINING_LEVEL,)  # "all" on the command line is every level and every controller
    controllers: tuple[str, ...] = ("default_plan", "guarded_max_pressure", "fixed_time", "following_plan", OURS)


def experiment_config(args: RunOptions) -> ExperimentConfig:
    """The preset with what the command line overrides."""
    cfg = PRESETS[args.preset]
    return dataclasses.replace(cfg, seeds=args.seeds or cfg.seeds, max_folds=args.folds or cfg.max_folds)


PRESETS = {
    # Every stage in minutes, for tests and first looks; its numbers mean nothing.
    "smoke": ExperimentConfig(
        ForecasterConfig(layers=2, hidden=16, heads=2),
        TrainConfig(epochs=2, patience=2),
        ConformalConfig(num_clusters=4),
        FlowConfig(num_layers=2, hidden=16, context=ContextConfig(features=16, heads=2)),
        TrainConfig(learning_rate=1e-3, batch=16, epochs=3, patience=3),
        RivalConfigs(
            IsolationForestConfig(trees=10, samples=64),
            PcaConfig(components=2),
            UsadConfig(window=4, latent=4, epochs=2),
            OmniAnomalyConfig(4, 2, 8, 8, 2, samples=1, training=TrainConfig(epochs=1, patience=1)),
        ),
        TrainConfig(epochs=2, patience=2),
        seeds=2,
        max_folds=1,
    ),
    # A two-core machine: a narrower network, small batches and a high learning rate with averaged weights, which learn
    # in a tenth of the time; on validation parts 32 numbers per cell were as good as 64.
    "default": ExperimentConfig(
        ForecasterConfig(hidden=32),
        TrainConfig(learning_rate=2e-3, batch=16, epochs=8, patience=3, average=0.98),
        # OmniAnomaly: a quarter of the published window, a day of quarter hours being 96, and an eighth of its width.
        # RIPCN: half of the published widths, without which a step of it costs as much as twenty of the others.
        rivals=RivalConfigs(
            omni_anomaly=OmniAnomalyConfig(window=24, hidden=64, dense=64), ripcn=RipcnConfig(widths=(16, 32))
        ),
        # The same steps, and more of them on short recordings: rivals begin with nothing, PU-GAT+ with an anchor.
        rival_training=TrainConfig(learning_rate=2e-3, batch=16, epochs=60, patience=8, average=0.98),
        rival_steps=600,
        seeds=1,  # the whole run then takes less than half an hour; published rows have `--seeds 3`
    ),
    # The paper's sizes and seeds, for a GPU.
    "paper": ExperimentConfig(
        training=TrainConfig(epochs=100, patience=10), rival_training=TrainConfig(epochs=100, patience=10), seeds=10
    ),
}
CONTROL = {
    "smoke": ControlConfig(GridConfig(size=SIDES["smoke"]), DemandConfig(warmup_s=60, duration_s=300), episodes=2),
    "default": ControlConfig(),
    "paper": ControlConfig(episodes=100, levels=tuple(DEMAND_LEVELS), controllers=(*CONTROLLERS, OURS)),
}
# Learned controllers. How many of each are trained, unless --seeds says otherwise:
AGENT_SEEDS = {"smoke": 1, "default": 1, "paper": 5}
AGENTS = {
    "smoke": AgentConfig(
        policy=PolicyConfig(hidden=16, layers=1),
        trial=TrialConfig(hours=2),
        ppo=PPOConfig(epochs=1, minibatch=64),
        world=WorldConfig(members=2, hidden=16, layers=1, horizon=3, held_out_block=2),
        world_training=TrainConfig(learning_rate=1e-3, batch=8, epochs=2, patience=2),
        lyapunov=LyapunovConfig(held_out_block=2),
        lyapunov_training=TrainConfig(learning_rate=1e-3, batch=16, epochs=2, patience=2),
        safety=SafetyConfig(num_projections=2),
        iterations=1,
        episodes=4,
        rounds=1,
        validation_episodes=2,
        validate_every=1,
    ),
    # Discount and trace are shorter than usual: a plan shows within minutes, and what comes later is noise to it.
    "default": AgentConfig(
        policy=PolicyConfig(std=0.35, std_bounds=(0.05, 0.6)),
        reward=RewardConfig(discount=0.95, cost_sharpness=4.0, reward_clip=3.0),
        trial=TrialConfig(hours=24),
        ppo=PPOConfig(discount=0.95, trace=0.8, learning_rate=1e-3, epochs=6, largest_divergence=0.02),
        world_training=TrainConfig(learning_rate=2e-3, batch=64, epochs=40, patience=6),
        safety=SafetyConfig(resolution=1.0),
        iterations=3,
        episodes=8,
        hold=5,
        rounds=4,
        margin="mean",  # a conformal margin covers single steps, but leaves next to none of them feasible
        validation_episodes=8,
        validate_every=1,
    ),
    "paper": AgentConfig(
        trial=TrialConfig(hours=192),
        safety=SafetyConfig(resolution=1.0),
        iterations=50,
        episodes=20,
        validation_episodes=20,
        validate_every=10,
    ),
}
