"""The named presets: every size that a run needs, composed of the rooms' own configs."""

import dataclasses

from experiments.cli.options import RunOptions
from experiments.methods.detection.isolation_forest import IsolationForestConfig
from experiments.methods.detection.omni_anomaly import OmniAnomalyConfig
from experiments.methods.detection.pca import PcaConfig
from experiments.methods.detection.usad import UsadConfig
from experiments.methods.forecasting.ripcn import RipcnConfig
from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.fit import TrainConfig
from stream_jax.flows import crfn_by
from stream_jax.flows.context import ContextConfig
from stream_jax.flows.crfn_by import FlowConfig
from stream_jax.gnn.pu_gat_plus import ForecasterConfig


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
