"""CRFN-BY: scores every cell's residuals by a conditional flow and rejects at a controlled false-discovery rate.

Section 4.2. The flow learns from residuals of forecasts that had not seen their targets, the p-values rank against
calibration residuals: a flow that has seen the scores it is ranked against makes them too small, and every test too
significant.

The way in: `fit` a flow on prepared residuals (`preparation.py`), `judge` a recording by it, `calibrate` on judged
steps that the fit has not seen, and `detect` in all others. Live, `step_judge` takes the place of `judge`.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from stream_jax.conformal import fdr, p_values
from stream_jax.fit import Examples, FitResult, TrainConfig, train
from stream_jax.flows import evidence
from stream_jax.flows.config import DEFAULT, FlowConfig
from stream_jax.flows.context import ContextEncoder, FlowData, FlowStep, Neighbours, step_at
from stream_jax.flows.decision import Calibration, evidence_of, rank, reject
from stream_jax.flows.real_nvp import ConditionalFlow, standard_normal_log_density, two_sided_radius
from stream_jax.types import Detection

__all__ = [
    "Calibration",
    "FlowConfig",
    "FlowParams",
    "Judged",
    "calibrate",
    "detect",
    "fit",
    "fit_with_history",
    "init_params",
    "judge",
    "log_density",
    "scores",
    "step_judge",
]
STEP_BATCH = 16  # steps scored at once
SMALLEST_SD = 1e-6


class FlowParams(NamedTuple):
    """What scoring needs; every leaf has a leading seed axis after a fit with several keys."""

    network: Any
    score_mean: Array  # [] of the held-out steps, to standardise scores for e-values
    score_sd: Array  # []


class Judged(NamedTuple):
    """What the flow says about cells, of one step or of many, before anything is decided."""

    score: Array  # [..., N] larger is more anomalous; NaN where not tested
    weight: Array  # [..., N] that the step-up procedure weighs cells by
    tested: Array  # [..., N] bool


# A batch is four steps of all cells: a week's recording leaves a few dozen steps to learn from, and 16 would be too few
# updates. The paper gives no setting.
DEFAULT_TRAINING = TrainConfig(learning_rate=2e-3, batch=4, epochs=20, patience=4)


def fit(
    key: Array,
    data: FlowData,
    cfg: FlowConfig = DEFAULT,
    train_cfg: TrainConfig = DEFAULT_TRAINING,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> FlowParams:
    """Maximum likelihood on residuals of unseen targets, one flow per key when `key` has shape [S]."""
    params, _ = fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)
    return params


def fit_with_history(
    key: Array,
    data: FlowData,
    cfg: FlowConfig = DEFAULT,
    train_cfg: TrainConfig = DEFAULT_TRAINING,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[FlowParams, FitResult]:
    """The same as `fit`, with the loss curves; losses are in nats per cell."""
    num_train = _num_train(data, cfg)
    steps = jnp.arange(data.z.shape[0])
    examples = Examples(steps[:num_train], steps[num_train:], data)
    # Zeros: the data would become constants of the compiled start, and seeds with different ones compile it again.
    init_fn = lambda key: init_params(key, jax.tree.map(jnp.zeros_like, data), cfg).network  # noqa: E731
    result = train(
        jnp.atleast_1d(key),
        init_fn,
        partial(_loss, cfg=cfg),
        partial(_step_losses, cfg=cfg),
        examples,
        train_cfg,
        progress,
        checkpoint_dir,
    )
    moments = jax.vmap(partial(_moments, cfg=cfg), (0, None, None))
    params = FlowParams(result.params, *moments(result.params, data, examples.val))
    return (params if key.ndim else jax.tree.map(lambda leaf: leaf[0], params)), result


def init_params(key: Array, data: FlowData, cfg: FlowConfig = DEFAULT) -> FlowParams:
    """A flow before training: the identity, for data of this shape."""
    network = _Network(cfg).init(key, step_at(data, 0, cfg.context.lags))
    return FlowParams(network, jnp.zeros(()), jnp.ones(()))


def scores(params: FlowParams, data: FlowData, cfg: FlowConfig) -> Array:
    """Anomaly score of every cell and step, [T, N]; NaN where not observed."""
    return judge(params, data, cfg).score


def judge(params: FlowParams, data: FlowData, cfg: FlowConfig) -> Judged:
    """Scores and weights of consecutive steps, [T, N] each; compiled once for all procedures and p-values."""
    _check_shapes(data)
    score, weight = _judge(params.network, data, cfg.scoring())
    return Judged(score, weight, data.observed)


def log_density(params: FlowParams, data: FlowData, cfg: FlowConfig) -> Array:
    """log p(z | context) of every cell and step in nats, [T, N]; NaN where not observed."""
    _check_shapes(data)
    base, log_det = _over_steps(partial(_Network(cfg).apply, params.network), data, jnp.arange(data.z.shape[0]), cfg)
    return jnp.where(data.observed, standard_normal_log_density(base) + log_det, jnp.nan)


def calibrate(
    params: FlowParams,
    judged: Judged,
    cfg: FlowConfig = DEFAULT,
    *,
    screen: Array | None = None,
    is_outlier: Array | None = None,
) -> Calibration:
    """Keeps the scores of calibration steps; warns when too few to reject a single cell. Runs on the host, per seed.

    Args:
        judged: steps that the fit has not seen.
        screen: [T, N] bool, False leaves a cell out for reasons that do not look at its score (another part of the
            recording, incident log, sensor health).
        is_outlier: [T, N] bool labels for p_value = "label_trim", read only for the largest scores.
    """
    kept = np.asarray(judged.tested if screen is None else judged.tested & screen)
    values = np.asarray(judged.score)[kept]  # [n]
    values = np.where(np.isnan(values), np.inf, values)
    if cfg.p_value == "label_trim":
        if is_outlier is None:
            raise ValueError("label_trim needs is_outlier: labels of the largest calibration scores")
        labels = jnp.asarray(np.asarray(is_outlier)[kept])
        values = values[np.asarray(p_values.label_trim_mask(jnp.asarray(values), labels, cfg.label_budget))]
    if values.size == 0:
        raise ValueError("no calibration cell was observed")
    fdr.check_calibration_size(values.size, kept.shape[1], cfg.level, cfg.procedure)
    moments = jnp.asarray(params.score_mean), jnp.asarray(params.score_sd)
    return Calibration(jnp.sort(values), *moments, jnp.asarray(values.size, jnp.int32))


def detect(calibration: Calibration, judged: Judged, cfg: FlowConfig) -> Detection:
    """P-values and rejections of a step [N], or of every step of a recording on its own, [T, N] each."""
    chex.assert_rank(calibration.scores, 1)
    chex.assert_equal_shape(judged)
    if judged.score.ndim == 2:
        return jax.vmap(lambda step: detect(calibration, step, cfg))(judged)
    score, weight, tested = judged
    p_value = rank(calibration, score, cfg)
    values = evidence_of(calibration, score, cfg) if cfg.procedure == "e_bh" else p_value
    rejected = reject(values, tested, weight, cfg.level, cfg.procedure)
    return Detection(jnp.where(tested, score, 0.0), jnp.where(tested, p_value, 1.0), rejected)


def step_judge(network: Any, step: FlowStep, carried: Array, cfg: FlowConfig) -> tuple[Judged, Array]:
    """What `judge` says of one step, and what to carry [N, D] to the next; zeros before the first."""
    base, log_det = cast(tuple[Array, Array], _Network(cfg).apply(network, step))
    score, weight, carried = _conclude(base, log_det, step.z, step.observed, carried, step.neighbours, cfg)
    return Judged(score, weight, step.observed), carried


@partial(jax.jit, static_argnames="cfg")
def _judge(network: Any, data: FlowData, cfg: FlowConfig) -> tuple[Array, Array]:
    rows = jnp.arange(data.z.shape[0])
    base, log_det = _over_steps(partial(_Network(cfg).apply, network), data, rows, cfg)

    def follow(carried: Array, row: tuple[Array, Array, Array, Array]) -> tuple[Array, tuple[Array, Array]]:
        score, weight, carried = _conclude(*row, carried, data.neighbours, cfg)
        return carried, (score, weight)

    return jax.lax.scan(follow, jnp.zeros_like(base[0]), (base, log_det, data.z, data.observed))[1]


class _Network(nn.Module):
    """Context, then flow."""

    cfg: FlowConfig

    @nn.compact
    def __call__(self, step: FlowStep) -> tuple[Array, Array]:
        """Returns: base vectors [N, D] and log-determinants [N]."""
        context = ContextEncoder(self.cfg.context, name="context")(step)
        flow = ConditionalFlow(step.z.shape[-1], self.cfg.num_layers, self.cfg.hidden, name="flow")
        return flow(step.z, context)


def _loss(key: Array, network: Any, rows: Array, weight: Array, data: FlowData, cfg: FlowConfig) -> Array:
    """Negative log-likelihood per observed cell of the weighted steps."""
    total, count = _likelihood_sums(key, network, rows, data, cfg)
    return (weight * total).sum() / jnp.maximum((weight * count).sum(), 1.0)


def _step_losses(network: Any, rows: Array, data: FlowData, cfg: FlowConfig) -> Array:
    total, count = _likelihood_sums(jax.random.key(0), network, rows, data, cfg)  # the same noise in every epoch
    return total / jnp.maximum(count, 1)  # [B]


def _likelihood_sums(key: Array, network: Any, rows: Array, data: FlowData, cfg: FlowConfig) -> tuple[Array, Array]:
    """Negative log-likelihood summed over the observed cells of each step, and their number: [B] each."""

    def base_of(row: Array) -> tuple[Array, Array]:
        step = step_at(data, row, cfg.context.lags)
        # All leads err about the same vehicles.
        shape = (step.z.shape[0], step.z.shape[1] if cfg.leads == "mean" else 1)
        shift = cfg.jitter * (jax.random.uniform(jax.random.fold_in(key, row), shape) - 0.5)
        return cast(tuple[Array, Array], _Network(cfg).apply(network, step._replace(z=step.z + shift * step.unit)))

    base, log_det = jax.vmap(base_of)(rows)
    nll = -standard_normal_log_density(base) - log_det  # [B, N]
    observed = data.observed[rows]
    return jnp.where(observed, nll, 0.0).sum(1), observed.sum(1)


def _over_steps(function: Any, data: FlowData, rows: Array, cfg: FlowConfig) -> Any:
    """function(FlowStep) for each row, a few at a time so that memory does not grow with the recording."""
    count, size = rows.shape[0], min(STEP_BATCH, rows.shape[0])
    batches = jnp.pad(rows, (0, -count % size)).reshape(-1, size)  # full ones only: a rest would be compiled again
    results = jax.lax.map(jax.vmap(lambda row: function(step_at(data, row, cfg.context.lags))), batches)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)


def _conclude(
    base: Array, log_det: Array, z: Array, observed: Array, carried: Array, neighbours: Neighbours, cfg: FlowConfig
) -> tuple[Array, Array, Array]:
    """Scores [N], NaN where not observed, weights [N], and what is carried on [N, D]."""
    drawn = base + cfg.shrink * (z - base)
    if cfg.score == "nll":
        score = -standard_normal_log_density(base) - log_det
    else:
        score = two_sided_radius(base) if cfg.two_sided else evidence.lasting_radius(drawn, carried)
    now = evidence.shown(drawn, observed, cfg.evidence)
    weight = evidence.weights(now, observed, carried, neighbours, cfg.evidence)
    return jnp.where(observed, score, jnp.nan), weight, evidence.carry(carried, now, cfg.evidence)


@partial(jax.jit, static_argnames="cfg")
def _moments(network: Any, data: FlowData, rows: Array, cfg: FlowConfig) -> tuple[Array, Array]:
    """Mean and standard deviation of the observed scores of some steps."""
    values = scores(FlowParams(network, jnp.zeros(()), jnp.ones(())), data, cfg)[rows]
    return jnp.nanmean(values), jnp.maximum(jnp.nanstd(values), SMALLEST_SD)


def _check_shapes(data: FlowData) -> None:
    chex.assert_rank(data.z, 3)
    num_steps, num_nodes, _ = data.z.shape
    chex.assert_shape(data.observed, (num_steps, num_nodes))
    chex.assert_equal_shape([data.z, data.unit])
    chex.assert_shape(data.clock, (num_steps, 4))
    chex.assert_equal(data.neighbours.index.shape[0], num_nodes)


def _num_train(data: FlowData, cfg: FlowConfig) -> int:
    """Steps to learn from; raises ValueError when a part is empty or was never observed."""
    _check_shapes(data)
    num_steps = data.z.shape[0]
    num_train = num_steps - round(cfg.held_out * num_steps)
    parts = {"fitting": data.observed[:num_train], "early stopping": data.observed[num_train:]}
    for name, observed in parts.items():
        if not bool(observed.any()):
            raise ValueError(f"no observed cell is left for {name} in {num_steps} steps")
    return num_train
