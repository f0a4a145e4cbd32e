"""Settings of CRFN-BY: flow, score, evidence, p-value and multiplicity."""

import dataclasses
from typing import Literal

from stream_jax.conformal import fdr
from stream_jax.flows.context import ContextConfig
from stream_jax.flows.evidence import ALONE, EvidenceConfig
from stream_jax.flows.residuals import Leads

PValue = Literal["full", "label_trim", "exp_tail", "calibration_conditional", "paper_trim"]


@dataclasses.dataclass(frozen=True)
class FlowConfig:
    """Paper values where the paper gives one."""

    num_layers: int = 6  # coupling layers where there are several targets; one target has a spline
    hidden: int = 32  # conditioner width; not given in the paper
    leads: Leads = "mean"  # what is scored of the H forecasts of a step: their mean error, or "all" errors jointly
    context: ContextConfig = ContextConfig()
    # The paper scores by "nll", which adds the context's log-volume to the energy: pooled over contexts it finds wide
    # contexts anomalous and narrow ones normal. The length of the base vector has one law in every context.
    score: Literal["radius", "nll"] = "radius"
    # The base vector is drawn this far back to the residual, which is itself in units of its spread. A flow that takes
    # all skewness away calls the lows after an anomaly, when forecasts are still too high, as rare as any; 0 is the
    # flow alone.
    shrink: float = 0.5
    two_sided: bool = False  # radius only: residuals that are too small, as of a stuck sensor, count as well
    level: float = 0.05
    procedure: fdr.Procedure = "by"
    evidence: EvidenceConfig = EvidenceConfig()  # of earlier steps and neighbours, for the radius and for BH and BY
    p_value: PValue = "full"  # "exp_tail" trusts a model of the tail; "paper_trim" is invalid and warns
    trim_fraction: float = 0.02  # of "paper_trim"
    label_budget: float = 0.08  # of "label_trim"
    failure: float = 0.1  # of "calibration_conditional"
    held_out: float = 0.25  # last share of the fitting steps, kept for early stopping
    # Vehicles; counts are spread uniformly over this width while the flow learns. Without it the likelihood rewards
    # shrinking onto the whole numbers, and one vehicle in an empty cell becomes the anomaly of the day.
    jitter: float = 1.0

    def __post_init__(self) -> None:
        if min(self.num_layers, self.hidden) < 1 or not (0.0 < self.level < 1.0 and 0.0 < self.held_out < 1.0):
            raise ValueError("num_layers and hidden must be at least 1, level and held_out inside (0, 1)")
        if not 0.0 <= self.shrink <= 1.0:
            raise ValueError("shrink must lie in [0, 1]")
        if self.two_sided and not self.has_law:
            raise ValueError("a two-sided score needs the radius of the flow alone at single steps, whose law is known")

    @property
    def has_law(self) -> bool:
        """Whether the score is the length of a standard normal vector where the flow is right."""
        return self.score == "radius" and self.shrink == 0.0 and self.evidence.memory == 0.0

    def alone(self) -> "FlowConfig":
        """The same flow, judged by itself and at single steps."""
        return dataclasses.replace(self, shrink=0.0, evidence=ALONE)

    def scoring(self) -> "FlowConfig":
        """The part that scores and weights depend on, so that one compiled function serves all procedures."""
        names = ("num_layers", "hidden", "context", "score", "shrink", "two_sided", "evidence")
        return FlowConfig(**{name: getattr(self, name) for name in names})


DEFAULT = FlowConfig()
