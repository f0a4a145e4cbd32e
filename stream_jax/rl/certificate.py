"""What may be promised about the violations of a controller: the drift bound, its margin, a verdict.

Theorem "Safety under Bounded Model Error" and its proof are wrong (the threshold grows with the violation that it
should exclude); `paper_epsilon_star` keeps the formula for the record. What holds instead, on every path, with
xi = L(x') - L(mu), margin m and excess exc = max(0, L(mu) + m - L(x) + kappa d_C - delta), is

    mean d_C <= (delta + mean (xi - m) + mean exc) / kappa + L(x_0) / (kappa T)

because L(x') - L(x) <= xi - m - kappa d_C + delta + exc telescopes. It needs no Lipschitz constant, no Jacobian and no
world model that is right: a poor model shows in xi. L and the world model must not change between margin and verdict.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy import stats

from stream_jax.conformal.bootstrap import block_bootstrap, ratio_of_totals
from stream_jax.conformal.order_statistics import conformal_rank, radius_at_rank
from stream_jax.rl.lyapunov import LyapunovConfig, shortfall

ROUNDING = 1e-4  # relative, of float32 sums over an episode
CONFIDENCE = 0.95
# Beyond it a verdict is about what was observed, not about what the condition held: where no step satisfies it, model
# and margin cancel, and the bound is mean d_C + L(x_T) / (kappa T), which any controller that drove well would have.
MOST_UNCERTIFIED = 0.1  # share of steps


class DriftTerms(NamedTuple):
    """One episode as logged, in the order of time; leaves [T], or [E, T] under vmap."""

    value: Array  # L(x_t)
    value_mean: Array  # L(mu_t)
    value_next: Array  # L(x_{t+1})
    margin: Array
    violation: Array  # d_C(x_t)


class DriftBound(NamedTuple):
    """The drift inequality: realised <= bound = delta_term + residual_term + excess_term + start_term."""

    bound: Array  # [] +inf under an infinite margin
    delta_term: Array  # [] delta / kappa
    residual_term: Array  # [] mean (xi - m) / kappa
    excess_term: Array  # [] mean exc / kappa
    start_term: Array  # [] L(x_0) / (kappa T)
    realised: Array  # [] mean d_C
    holds: Array  # [] bool; it is algebra, so False means that the log is not one contiguous episode


class Verdict(NamedTuple):
    """Whether the mean violation per episode is certified to stay below a target, and every number behind it."""

    certified: bool
    failing: str  # why not; empty when certified
    target: float
    upper: float  # 95 % one-sided limit of the expected drift bound, over episodes
    bound: float
    delta_term: float
    residual_term: float
    excess_term: float
    start_term: float
    realised: float
    episodes: int
    uncertified_share: float  # steps whose executed action did not satisfy the condition


def drift_bound(terms: DriftTerms, cfg: LyapunovConfig) -> DriftBound:
    """The bound on the mean violation of one episode, term by term."""
    chex.assert_rank(terms.value, 1)
    excess = jnp.maximum(shortfall(terms.value, terms.value_mean, terms.margin, terms.violation, cfg), 0.0)
    parts = [
        jnp.asarray(cfg.delta),
        (terms.value_next - terms.value_mean - terms.margin).mean(),
        excess.mean(),
        terms.value[0] / terms.value.shape[0],
    ]
    parts = [part / cfg.kappa for part in parts]
    bound = jnp.where(jnp.isfinite(terms.margin).all(), sum(parts), jnp.inf)
    realised = terms.violation.mean()
    tolerance = ROUNDING * (realised + sum(jnp.abs(part) for part in parts))
    return DriftBound(bound, *parts, realised=realised, holds=~(realised > bound + tolerance))


def conformal_margin(residuals: Array, alpha: float = 0.1) -> Array:
    """Smallest m with P(L(x') <= L(mu) + m) >= 1 - alpha for one more exchangeable residual; +inf when n is too small.

    Args: residuals [n] of L(x') - L(mu), from held-out steps under the current policy, exchangeable: steps of one
    episode are not, so take `one_per_episode` or `block_maxima`.
    """
    chex.assert_rank(residuals, 1)
    count = residuals.shape[0]
    rank = conformal_rank(count, alpha)
    return radius_at_rank(jnp.sort(residuals)[jnp.clip(rank - 1, 0, count - 1)], rank, count)


def one_per_episode(key: Array, residuals: Array) -> Array:
    """A random step of every episode: [E, T] -> [E]. The margin then covers a random step of a fresh episode."""
    steps = jax.random.randint(key, residuals.shape[:1], 0, residuals.shape[1])
    return jnp.take_along_axis(residuals, steps[:, None], axis=1)[:, 0]


def block_maxima(residuals: Array, block: int) -> Array:
    """Largest residual of every whole block, [T] -> [T // block]: the margin then covers all steps of a fresh block."""
    whole = residuals.shape[0] // block
    return residuals[: whole * block].reshape(whole, block).max(axis=1)


def mean_margin(key: Array, residuals: Array, block: int) -> Array:
    """Upper 95 % confidence limit of the mean residual: the smaller margin, enough for the drift bound on average."""
    sums = jnp.stack([residuals, jnp.ones_like(residuals)], axis=1)
    return block_bootstrap(key, sums, ratio_of_totals, block, level=2.0 * CONFIDENCE - 1.0).upper


def verdict(bounds: DriftBound, certified_steps: Array, target: float, cfg: LyapunovConfig) -> Verdict:
    """Certifies that the expected mean violation of an episode stays below the target, by actions that were certified.

    Args:
        bounds: leaves [E], one drift bound per fresh and independent episode of the frozen controller.
        certified_steps: [E, T] bool, whether the executed action satisfied the condition.
    """
    totals = np.atleast_1d(np.asarray(bounds.bound, np.float64))
    upper = _upper_limit(totals)
    reasons = []
    if cfg.kappa * target <= cfg.delta:
        reasons.append(f"kappa times the target {target:g} does not exceed the slack delta {cfg.delta:g}")
    if not np.all(bounds.holds):
        reasons.append("the drift identity is broken: an episode's log is not contiguous")
    if not np.all(np.isfinite(totals)):
        reasons.append("the margin is infinite: too few calibration residuals")
    elif totals.size < 2:
        reasons.append("one episode says nothing about the next: run more")
    if not upper <= target:
        reasons.append(
            f"the drift bound, {totals.mean():.4g} with upper limit {upper:.4g}, exceeds the target {target:g}"
        )
    share = 1.0 - float(np.mean(certified_steps))
    if share > MOST_UNCERTIFIED:
        reasons.append(f"{share:.0%} of the executed actions did not satisfy the condition")
    parts = [float(np.mean(getattr(bounds, name))) for name in DriftBound._fields[:-1]]
    return Verdict(
        not reasons, "; ".join(reasons), target, upper, *parts, episodes=totals.size, uncertified_share=share
    )


def describe(result: Verdict) -> str:
    """The verdict in plain lines."""
    head = "certified" if result.certified else f"not certified: {result.failing}"
    rows = [f"  {name} {value:.6g}" for name, value in result._asdict().items() if name not in ("certified", "failing")]
    return "\n".join([head, *rows])


def decrease_share(values: Array) -> Array:
    """The paper's rho_Lyap, the share of steps with L(x') < L(x); one half in any stationary regime. Args: [T + 1]."""
    return (values[1:] < values[:-1]).mean()


def certified_share(terms: DriftTerms, cfg: LyapunovConfig) -> Array:
    """rho_cert: share of executed steps with L(x') - L(x) <= -kappa d_C + delta, as it turned out."""
    return (shortfall(terms.value, terms.value_next, 0.0, terms.violation, cfg) <= 0.0).mean()


def paper_epsilon_star(mean_violation: float, lipschitz: float, jacobian: float, cfg: LyapunovConfig) -> float:
    """Eq. (eps_star) as printed, for the record: it grows with the violation, and certifies nothing."""
    return (cfg.delta + cfg.kappa * mean_violation) / (lipschitz * (1.0 + jacobian))


def _upper_limit(totals: np.ndarray) -> float:
    """One-sided Student limit of the mean over episodes; +inf for fewer than two."""
    if totals.size < 2 or not np.all(np.isfinite(totals)):
        return float("inf")
    error = totals.std(ddof=1) / np.sqrt(totals.size)
    return float(totals.mean() + stats.t.ppf(CONFIDENCE, totals.size - 1) * error)
