"""From scores to alarms: ranks among calibration scores, then the cells of a step that are called anomalous.

Section 4.2, Eqs. (pvalue) and (by). The two steps are apart so that procedures can be compared on the same scores.
"""

from typing import NamedTuple

from jax import Array

from stream_jax.conformal import e_values, fdr, p_values
from stream_jax.flows.config import FlowConfig


class Calibration(NamedTuple):
    """Scores of normal cells that new scores are ranked against."""

    scores: Array  # [n] ascending
    mean: Array  # [] for e-values, not from these scores
    sd: Array  # []
    count: Array  # [] int32, n


def rank(calibration: Calibration, score: Array, cfg: FlowConfig) -> Array:
    """P-values of scores of any shape."""
    if cfg.p_value == "exp_tail":
        return p_values.exponential_tail_p_values(calibration.scores, score)
    if cfg.p_value == "calibration_conditional":
        return p_values.calibration_conditional_p_values(calibration.scores, score, failure=cfg.failure)
    if cfg.p_value == "paper_trim":
        return p_values.paper_trimmed_p_values(calibration.scores, score, trim_fraction=cfg.trim_fraction)
    return p_values.conformal_p_values(calibration.scores, score, assume_sorted=True)


def evidence_of(calibration: Calibration, score: Array, cfg: FlowConfig) -> Array:
    """What the procedure decides by: e-values for e-BH, p-values for the others."""
    if cfg.procedure == "e_bh":
        return e_values.soft_rank_e_values(calibration.scores, score, mean=calibration.mean, sd=calibration.sd)
    return rank(calibration, score, cfg)


def reject(values: Array, tested: Array, weight: Array, level: float | Array, procedure: fdr.Procedure) -> Array:
    """Which cells of one step are anomalous, [N] bool, by their p-values or e-values; e-BH knows no weights."""
    if procedure == "e_bh":
        return fdr.e_bh_reject(values, level, tested=tested)
    return fdr.step_up(values, level, procedure=procedure, tested=tested, weights=weight).rejected
