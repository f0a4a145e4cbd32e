"""From scores to decisions and their quality: every p-value variant with every procedure, at every level."""

import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.stages.detection import Scored, calibration_of
from stream_jax.conformal import fdr_metrics, p_values, range_metrics
from stream_jax.flows import decision
from stream_jax.flows.config import FlowConfig

LEVELS = (0.01, 0.05, 0.1, 0.2)
HEADLINE = 0.05  # the paper's
OURS = "full+by"  # CRFN-BY
WEIGHTED = ("full", "label_trim", "exp_tail", "paper_trim")  # our own p-values, whose step-up procedures weigh cells
# Our own p-values and e-values, as settings of the detector.
VARIANTS = {
    "full": FlowConfig(),
    "unweighted": FlowConfig(),
    "soft_rank": FlowConfig(procedure="e_bh"),
    "label_trim": FlowConfig(p_value="label_trim"),
    "exp_tail": FlowConfig(p_value="exp_tail"),
    "paper_trim": FlowConfig(p_value="paper_trim"),
}
# Of the residual alone, for comparison.
PARAMETRIC = {
    "gaussian": jax.jit(p_values.gaussian_p_values),
    "student_t": jax.jit(partial(p_values.student_t_p_values, degrees_of_freedom=5.0)),
}
BLOCK_STEPS = 10
TIE = 1e-4  # of a score, against log p: a difference of 1 is less than one rank of ten thousand
# Names of the compared detectors: p-value variant and procedure.
ARMS = (
    "full+by",
    "full+bh",
    "unweighted+by",
    "unweighted+bh",
    "soft_rank+e_bh",
    "label_trim+by",
    "label_trim+bh",
    "exp_tail+by",
    "paper_trim+by",
    "gaussian+by",
    "student_t+by",
)


def evidence(scored: Scored, variant: str) -> np.ndarray:
    """p-values (or e-values) [T, N] of one variant; NaN scores count as untested elsewhere."""
    if variant in PARAMETRIC:
        return np.asarray(PARAMETRIC[variant](scored.first_residual))
    with warnings.catch_warnings():  # the excess of trimming is what the table shows
        warnings.simplefilter("ignore", p_values.InvalidPValueWarning)
        calibration = calibration_of(scored, VARIANTS[variant])
        return np.asarray(_evidence(calibration, jnp.asarray(scored.test), VARIANTS[variant]))


def own_ranks(calibration: np.ndarray) -> np.ndarray:
    """Share of the calibration scores at least as large as each of them; NaN where there is none. Like the input."""
    present = ~np.isnan(calibration)
    ordered = np.sort(calibration[present])
    rank = 1.0 - np.searchsorted(ordered, calibration, side="left") / max(ordered.size, 1)
    return np.where(present, rank, np.nan)


def reject(
    values: np.ndarray, tested: np.ndarray, procedure: str, level: float, weight: np.ndarray | None = None
) -> np.ndarray:
    """Decisions of every step on its own, BH and BY with weights if there are any. [T, N] bool"""
    weight = np.ones(values.shape, np.float32) if weight is None else weight
    return np.asarray(_reject(jnp.asarray(values), jnp.asarray(tested), jnp.asarray(weight), level, procedure))


def quality_rows(scenario: str, folds: list[Scored], seed: int) -> list[dict]:
    """FDR per step and pooled, recall and F1 of every arm and level over all folds, with block-bootstrap intervals.

    Every tested cell takes part in the decisions; those known to be normal or anomalous are counted, tested or not: an
    anomaly in a cell too quiet to be tested is missed.
    """
    rows, ours = [], decided(folds, OURS, (HEADLINE,))[HEADLINE]
    for arm in ARMS:
        for level, rejected in decided(folds, arm, LEVELS).items():
            common = {"seed": seed, "scenario": scenario, "arm": arm, "level": level}
            rows += [common | row for row in decision_rows(folds, rejected, seed)]
            if level == HEADLINE and arm != OURS:
                rows.append(common | paired_row(folds, rejected, ours, seed))
    # The order in which CRFN-BY rejects, then the score of single cells, then the size of the residual.
    rankings = {
        "weighted": [urgency(one) for one in folds],
        "score": [one.test for one in folds],
        "residual": [np.abs(one.first_residual) for one in folds],
    }
    for arm, scores in rankings.items():
        common = {"seed": seed, "scenario": scenario, "arm": arm}
        rows += [common | row for row in ranking_rows(folds, scores)]
    return rows


def decided(folds: list[Scored], arm: str, levels: tuple[float, ...]) -> dict[float, np.ndarray]:
    """Decisions of an arm at each level about the test parts of all folds, one after the other. [T, N] bool"""
    variant, procedure = arm.split("+")
    values = np.concatenate([evidence(one, variant) for one in folds])
    tested = np.concatenate([~np.isnan(one.test) for one in folds])
    weight = np.concatenate([one.weight for one in folds]) if variant in WEIGHTED else None
    return {level: reject(values, tested, procedure, level, weight) for level in levels}


def urgency(one: Scored) -> np.ndarray:
    """log w - log p with weights of mean 1, then by score where p-values are tied; NaN where not tested. [T, N]"""
    tested = ~np.isnan(one.test)
    mean = np.where(tested, one.weight, 0.0).sum(1, keepdims=True) / np.maximum(tested.sum(1, keepdims=True), 1)
    found = np.log(one.weight / np.maximum(mean, 1e-9)) - np.log(evidence(one, "full"))
    return np.where(tested, found + TIE * one.test, np.nan)


def paired_row(folds: list[Scored], rejected: np.ndarray, ours: np.ndarray, seed: int) -> dict:
    """F1 of decisions [T, N] minus that of ours, blocks of steps drawn together."""
    found = _paired_f1(jax.random.key(seed), _counts(folds, rejected), _counts(folds, ours))
    bounds = {"lower": float(found.lower), "upper": float(found.upper)}
    return {"metric": "f1_minus_ours", "value": float(found.estimate)} | bounds


def decision_rows(folds: list[Scored], rejected: np.ndarray, seed: int) -> list[dict]:
    """Metric, value and 95 % interval of decisions [T, N] about the test parts of all folds, one after the other."""
    counts = _counts(folds, rejected)
    spread = _bootstrap(jax.random.key(seed), counts)
    return [
        {
            "metric": name,
            "value": float(getattr(spread.estimate, name)),
            "lower": float(getattr(spread.lower, name)),
            "upper": float(getattr(spread.upper, name)),
        }
        for name in fdr_metrics.DetectionMetrics._fields
    ]


def ranking_rows(folds: list[Scored], scores: list[np.ndarray]) -> list[dict]:
    """Average precision and VUS-PR of a ranking of the test parts, [T, N] each; what is not tested ranks last."""
    gap = ((0, range_metrics.DEFAULT_BUFFER), (0, 0))  # no event reaches from one fold into the next
    label = np.concatenate([np.pad(one.kind > 0, gap) for one in folds])
    counted = np.concatenate([np.pad(one.judged, gap) for one in folds])
    ranked = np.concatenate([np.pad(part, gap) for part in scores])
    ranked = np.nan_to_num(ranked, nan=np.nanmin(ranked) - 1.0)
    measured = {
        "average_precision": fdr_metrics.average_precision(
            jnp.asarray(ranked), jnp.asarray(label), tested=jnp.asarray(counted)
        ),
        "vus_pr": range_metrics.volume_under_pr_surface(ranked, label, tested=counted),
    }
    return [{"metric": name, "value": float(value)} for name, value in measured.items()]


def _counts(folds: list[Scored], rejected: np.ndarray) -> fdr_metrics.StepCounts:
    label = np.concatenate([one.kind > 0 for one in folds])
    counted = np.concatenate([one.judged for one in folds])
    return fdr_metrics.count_steps(jnp.asarray(rejected), jnp.asarray(label), tested=jnp.asarray(counted))


_paired_f1 = jax.jit(partial(fdr_metrics.paired_f1, block_steps=BLOCK_STEPS))


@jax.jit
def _bootstrap(key: jax.Array, counts: fdr_metrics.StepCounts) -> fdr_metrics.MetricsBootstrap:
    return fdr_metrics.bootstrap_metrics(key, counts, block_steps=BLOCK_STEPS)


_evidence = jax.jit(decision.evidence_of, static_argnames="cfg")


@partial(jax.jit, static_argnames="procedure")
def _reject(values: Array, tested: Array, weight: Array, level: Array, procedure: str) -> Array:
    return jax.vmap(lambda *step: decision.reject(*step, level, procedure))(values, tested, weight)
