"""Simulated false-discovery rates: where BH and BY hold, where trimming and few calibration steps break them.

293 cells of which 15 are anomalous by 4 to 8 standard deviations, scores |z|, level 0.05. Tolerances are three standard
errors of the simulated mean.
"""

import itertools
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import signal

from stream_jax.conformal.e_values import soft_rank_e_values
from stream_jax.conformal.fdr import bh_reject, by_reject, e_bh_reject, step_up, storey_bh_reject
from stream_jax.conformal.p_values import (
    InvalidPValueWarning,
    calibration_conditional_p_values,
    conformal_p_values,
    gaussian_p_values,
    label_trim_mask,
    paper_trimmed_p_values,
)

NUM_CELLS, NUM_ANOMALOUS, LEVEL = 293, 15, 0.05
IS_ANOMALY = np.arange(NUM_CELLS) < NUM_ANOMALOUS


class Draws(NamedTuple):
    """R independent runs, drawn in numpy to spare the compiler."""

    calibration: np.ndarray  # [R, n] scores
    is_outlier: np.ndarray  # [R, n] contaminated calibration scores
    scores: np.ndarray  # [R, N]


def shifted(rng: np.random.Generator, z: np.ndarray, is_outlier: np.ndarray) -> np.ndarray:
    """Scores |z + shift| with a shift of 4 to 8 where outlying."""
    return np.abs(z + is_outlier * rng.uniform(4.0, 8.0, z.shape)).astype(np.float32)


def one_factor(rng: np.random.Generator, num_runs: int, rho: float, sign: np.ndarray | float = 1.0) -> np.ndarray:
    """[R, N] standard normals whose pairs within a run have correlation +-rho."""
    shared, own = rng.normal(size=(num_runs, 1)), rng.normal(size=(num_runs, NUM_CELLS))
    return np.sqrt(rho) * shared * sign + np.sqrt(1.0 - rho) * own


def draw(seed: int, num_runs: int, n: int, contamination: float = 0.0) -> Draws:
    """Independent scores throughout; a share `contamination` of the calibration has the law of the anomalies."""
    rng = np.random.default_rng(seed)
    is_outlier = np.broadcast_to(np.arange(n) < round(contamination * n), (num_runs, n))
    calibration = shifted(rng, rng.normal(size=(num_runs, n)), is_outlier)
    return Draws(calibration, is_outlier, shifted(rng, one_factor(rng, num_runs, 0.0), IS_ANOMALY))


def simulate(decide: Callable[..., dict[str, Array]], *draws: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """FDR, its standard error and power of each rejection vector that `decide` returns for a run."""
    return {name: summarise(np.asarray(r)) for name, r in jax.jit(jax.vmap(decide))(*draws).items()}


def summarise(rejected: np.ndarray) -> tuple[float, float, float]:
    proportion = np.sum(rejected & ~IS_ANOMALY, axis=1) / np.maximum(rejected.sum(axis=1), 1)
    return proportion.mean(), proportion.std() / np.sqrt(len(proportion)), rejected[:, IS_ANOMALY].mean()


def assert_controls(result: tuple[float, float, float]) -> None:
    fdr, standard_error, _ = result
    assert fdr <= LEVEL + 3 * standard_error


def test_trimming_a_clean_calibration_set_breaks_the_level_and_not_trimming_keeps_it():
    def decide(calibration, scores):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InvalidPValueWarning)
            p_trimmed = paper_trimmed_p_values(calibration, scores, trim_fraction=0.02)
        p_values = conformal_p_values(calibration, scores)
        p_conditional = calibration_conditional_p_values(calibration, scores)
        return {
            "paper": by_reject(p_trimmed, LEVEL),
            "by": by_reject(p_values, LEVEL),
            "bh": bh_reject(p_values, LEVEL),
            "conditional": bh_reject(p_conditional, LEVEL),
            "storey": storey_bh_reject(p_values, LEVEL),
        }

    draws = draw(0, 100, 20_000)
    result = simulate(decide, draws.calibration, draws.scores)
    # Nulls alone give .02 * 278 / (.02 * 278 + 15) = .27 when every anomaly is found.
    assert result["paper"][0] > 0.2
    for name in ("by", "bh", "conditional", "storey"):
        assert_controls(result[name])
    # BH's FDR is level * m0 / m = .047; BY's is that over H_293 = 6.26.
    assert abs(result["bh"][0] - 0.047) < 3 * result["bh"][1]
    assert result["by"][0] < 0.02 and result["by"][2] > 0.9


def test_confirmed_outliers_removed_from_calibration_restore_power_at_the_level():
    def decide(calibration, is_outlier, scores):
        kept = label_trim_mask(calibration, is_outlier, budget=0.08)
        p_trimmed = conformal_p_values(calibration, scores, calibration_mask=kept)
        return {
            "untrimmed": bh_reject(conformal_p_values(calibration, scores), LEVEL),
            "by": by_reject(p_trimmed, LEVEL),
            "bh": bh_reject(p_trimmed, LEVEL),
            "e_bh": e_bh_reject(soft_rank_e_values(calibration, scores, calibration_mask=kept), LEVEL),
        }

    result = simulate(decide, *draw(1, 50, 40_000, contamination=0.02))
    assert result["untrimmed"][2] < 0.05  # outliers as large as the anomalies hide them all
    for name, power in (("by", 0.9), ("bh", 0.95), ("e_bh", 0.75)):
        assert_controls(result[name])
        assert result[name][2] > power


def test_equal_correlation_between_cells_of_either_sign_does_not_break_bh():
    # The null law is known, so that nothing but the dependence of the cells is at work.
    rng = np.random.default_rng(2)
    mixed = np.where(np.arange(NUM_CELLS) % 2 == 0, 1.0, -1.0)
    decide = jax.jit(jax.vmap(lambda scores: bh_reject(gaussian_p_values(scores), LEVEL)))
    for rho, sign in itertools.product((0.3, 0.7, 0.95), (1.0, mixed)):
        scores = shifted(rng, one_factor(rng, 2000, rho, sign), IS_ANOMALY)
        assert_controls(summarise(np.asarray(decide(scores))))


def test_weights_from_elsewhere_keep_the_level_and_gain_power_and_weights_from_the_p_value_itself_break_it():
    # Anomalies of 3 standard deviations, and a second number of each cell that says where they are likely.
    rng = np.random.default_rng(4)
    z = rng.normal(size=(600, NUM_CELLS)) + 3.0 * IS_ANOMALY
    hint = rng.normal(size=z.shape) + 2.0 * IS_ANOMALY

    def decide(z, hint):
        p = gaussian_p_values(z)
        weighted = {n: jnp.exp(2.0 * jnp.clip(v - 0.5, 0.0, 1.7)) for n, v in (("elsewhere", hint), ("itself", z))}
        found = {name: step_up(p, LEVEL, procedure="bh", weights=w).rejected for name, w in weighted.items()}
        return found | {"none": bh_reject(p, LEVEL), "by": step_up(p, LEVEL, weights=weighted["elsewhere"]).rejected}

    result = simulate(decide, z.astype(np.float32), hint.astype(np.float32))
    for name in ("elsewhere", "by", "none"):
        assert_controls(result[name])
    assert result["elsewhere"][2] > 1.3 * result["none"][2]
    assert result["itself"][0] > 2 * LEVEL


def test_guo_rao_dependence_breaks_bh_by_the_harmonic_factor_and_not_by():
    # All null. K = k with probability level / k; then k random p-values fall in ((k-1) level/m, k level/m] and BH
    # rejects them. Each p-value is uniform, and BH's FDR is level * H_293 = .05 * 6.259 = .313: the worst case.
    m, num_runs, rng = NUM_CELLS, 8000, np.random.default_rng(3)
    chance = LEVEL / np.arange(1, m + 1)
    count = rng.choice(m + 1, num_runs, p=np.append(1.0 - chance.sum(), chance))[:, None]
    low = (count - rng.random((num_runs, m))) * LEVEL / m
    is_low = rng.permuted(np.broadcast_to(np.arange(m), (num_runs, m)), axis=1) < count
    p_values = np.where(is_low, low, rng.uniform(LEVEL, 1.0, (num_runs, m))).astype(np.float32)
    decide = jax.jit(jax.vmap(lambda p: (bh_reject(p, LEVEL).any(), by_reject(p, LEVEL).any())))
    bh, by = map(np.mean, decide(p_values))  # all null: the FDR is the chance of any rejection
    assert abs(bh - 0.313) < 3 * np.sqrt(0.313 * 0.687 / num_runs)
    assert by <= LEVEL
    assert abs(np.mean(p_values[:, 0] <= 0.1) - 0.1) < 3 * np.sqrt(0.09 / num_runs)  # the margins are valid


def test_few_calibration_steps_whose_cells_move_together_break_bh_and_by():
    # 7 calibration steps of 293 cells, correlation .95 within a step and .9 from step to step; the test step comes
    # long after. The pooled n = 2051 feigns a resolution that 7 steps do not have.
    num_runs, num_steps, rho, persistence, rng = 1000, 7, 0.95, 0.9, np.random.default_rng(4)
    shocks = rng.normal(size=(num_runs, num_steps))
    shocks[:, 1:] *= np.sqrt(1 - persistence**2)  # the first is the stationary start
    shared = signal.lfilter([1.0], [1.0, -persistence], shocks, axis=1)[..., None]  # [R, T, 1]
    own = rng.normal(size=(num_runs, num_steps, NUM_CELLS))
    calibration = np.abs(np.sqrt(rho) * shared + np.sqrt(1 - rho) * own).reshape(num_runs, -1).astype(np.float32)

    def decide(calibration, scores):
        p_values = conformal_p_values(calibration, scores)
        return {"bh": bh_reject(p_values, LEVEL), "by": by_reject(p_values, LEVEL)}

    scores = shifted(rng, one_factor(rng, num_runs, rho), IS_ANOMALY)
    for fdr, standard_error, _ in simulate(decide, calibration, scores).values():
        assert fdr > LEVEL + 3 * standard_error
