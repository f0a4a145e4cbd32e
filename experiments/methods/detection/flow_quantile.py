"""The flow without conformal p-values: a cell is anomalous if the flow itself gives it a small tail probability.

The paper's baseline "Flow (no conf.)". If the flow were right, the base vector of a normal cell would be standard
normal and its length would follow the chi law; the tail probability of that law is compared with the level, without
calibration. The flow is the one of CRFN-BY: same rows, settings and key, so the detect stage reads its scores instead
of training it twice.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jax import Array
from scipy.special import gammaincc

from experiments.methods.method import Method
from stream_jax.fit import TrainConfig
from stream_jax.flows import crfn_by
from stream_jax.flows.context import FlowData


@dataclasses.dataclass(frozen=True)
class FlowQuantileConfig:
    """The flow and its training, CRFN-BY's own."""

    flow: crfn_by.FlowConfig = crfn_by.DEFAULT.alone()
    training: TrainConfig = crfn_by.DEFAULT_TRAINING

    def __post_init__(self) -> None:
        if not self.flow.has_law or self.flow.two_sided:
            raise ValueError("only the radius of the flow's own base vector at single steps has a law of its own")


class FlowQuantileParams(NamedTuple):
    """The trained flow."""

    flow: crfn_by.FlowParams | None  # None where its scores are already there
    num_targets: int


def fit(key: Array, data: FlowData, cfg: FlowQuantileConfig, held_out: float) -> FlowQuantileParams:
    """Maximum likelihood, stopped early on the last share `held_out` of the steps."""
    flow_cfg = dataclasses.replace(cfg.flow, held_out=held_out)
    return FlowQuantileParams(crfn_by.fit(key, data, flow_cfg, cfg.training), data.z.shape[-1])


def scores(params: FlowQuantileParams, data: FlowData, cfg: FlowQuantileConfig) -> Array:
    """Length of the base vector: [T, N], NaN where not observed."""
    return crfn_by.scores(params.flow, data, cfg.flow)


def tail_probability(params: FlowQuantileParams, score: np.ndarray) -> np.ndarray:
    """P(length >= score) of a standard normal vector; NaN stays NaN."""
    return gammaincc(params.num_targets / 2.0, 0.5 * np.square(np.asarray(score, np.float64)))


def flow_alone(cfg: Any, **changes: Any) -> FlowQuantileConfig:
    """A preset's flow with some settings changed, judged by itself and at single steps: such scores have a law."""
    return FlowQuantileConfig(dataclasses.replace(cfg.flow.alone(), **changes), cfg.flow_training)


METHOD = Method(
    "flow_quantile",
    flow_alone,
    paper_label={"Flow (no conf.)": "flow_quantile"},  # at the tail probability 5 %
    tables={"anomaly": ("flow_quantile",)},
)
# A flow whose context shows anomalous pasts, clipped, instead of leaving them out.
CLIPPED = Method(
    "flow_clipped", lambda cfg: flow_alone(cfg, context=dataclasses.replace(cfg.flow.context, beyond="clipped"))
)
# A flow over the errors of all leads jointly, D = H.
ALL_LEADS = Method("flow_all_leads", lambda cfg: flow_alone(cfg, leads="all"))
