"""The named presets: every size that a run needs, composed of the rooms' own configs."""

import dataclasses

from stream_jax.conformal.intervals import ConformalConfig
from stream_jax.fit import TrainConfig
from stream_jax.gnn.pu_gat_plus import ForecasterConfig


@dataclasses.dataclass(frozen=True)
class ExperimentConfig:
    """One run; written beside its results."""

    forecaster: ForecasterConfig = ForecasterConfig()
    training: TrainConfig = TrainConfig()
    conformal: ConformalConfig = ConformalConfig()
    seeds: int = 3
    first_seed: int = 0


PRESETS = {
    # Every stage in minutes, for tests and first looks; its numbers mean nothing.
    "smoke": ExperimentConfig(
        ForecasterConfig(layers=2, hidden=16, heads=2),
        TrainConfig(epochs=2, patience=2),
        ConformalConfig(num_clusters=4),
        2,
    ),
    # A two-core machine; the paper's network with fewer epochs and seeds.
    "default": ExperimentConfig(training=TrainConfig(epochs=30, patience=6)),
    # The paper's sizes and seeds, for a GPU.
    "paper": ExperimentConfig(training=TrainConfig(epochs=100, patience=10), seeds=10),
}
