"""CatBoost: gradient boosted trees on lags, neighbours, profile and calendar, one model a horizon.

Prokhorenkova, Gusev, Vorobev, Dorogush, Gulin, "CatBoost: unbiased boosting with categorical features", NeurIPS 2018,
with its loss RMSEWithUncertainty, which fits a mean and a variance. The paper that we follow does not say what its
CatBoost is shown; here it is what the linear autoregression knows: a cell's flows, its neighbours' flows, the causal
profile, the calendar and the cell itself. Trees cannot extrapolate, so they correct the profile times the city's
present level: correcting the profile alone, they were lost on days with a level that training never saw. Tuning
budget: the number of trees, chosen on the validation origins; depth and learning rate are the package's. A seed's trees
differ by the random seed of the package. Needs the package catboost (extra `rivals`).
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from data.errors import DataError
from experiments.methods.forecasting.profile import (
    EPS,
    Profile,
    WindowConfig,
    back_off,
    flow_of,
    flow_profiles,
    targets,
)
from experiments.methods.method import Method
from stream_jax.fit import TrainConfig
from stream_jax.types import Forecast, ForecastData

try:
    import catboost
except ImportError:  # an optional extra
    catboost = None

DAY_TYPE_STRENGTH = 1.0
DEFAULT_TRAINING = TrainConfig()
MISSING = 'The method catboost needs the package catboost; install it with: pip install "stream_jax[rivals]".'


@dataclasses.dataclass(frozen=True)
class BoostedTreesConfig(WindowConfig):
    """Sizes of a window and of the trees."""

    trees: int = 1000  # at most; the package's default
    patience: int = 50  # trees without a better validation loss before a model stops
    depth: int = 6  # the package's default
    reach: int = 4  # slots to each side over which the profile is smoothed
    neighbour_steps: int = 4  # newest steps of the neighbours' mean flow
    prior_flow: float = 50.0  # vehicles at the usual level, added to a window before the city's level is taken


DEFAULT = BoostedTreesConfig()


class BoostedTreesParams(NamedTuple):
    """Models by seed and horizon."""

    models: tuple[tuple[Any, ...], ...]


def fit(
    key: Array,
    data: ForecastData,
    cfg: BoostedTreesConfig = DEFAULT,
    train_cfg: TrainConfig = DEFAULT_TRAINING,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> BoostedTreesParams:
    """Grows the trees of one seed, or of each when `key` has shape [S]; the last three arguments are not used."""
    return fit_with_history(key, data, cfg, train_cfg, progress, checkpoint_dir)[0]


def fit_with_history(
    key: Array,
    data: ForecastData,
    cfg: BoostedTreesConfig,
    train_cfg: TrainConfig,
    progress: bool = False,
    checkpoint_dir: Path | str | None = None,
) -> tuple[BoostedTreesParams, None]:
    """The same as `fit`; trees have no epochs and no curves."""
    del train_cfg, progress, checkpoint_dir
    check_installed()
    seeds = np.asarray(jax.random.key_data(jnp.atleast_1d(key)))[:, -1] % 2**31  # [S]
    profile = _profile(data, cfg)
    pools = [_pools(data, profile, origins, cfg) for origins in (data.train, data.val)]
    models = tuple(tuple(_grow(int(seed), *pair, cfg) for pair in zip(*pools, strict=True)) for seed in seeds)
    return BoostedTreesParams(models), None


def predict(params: BoostedTreesParams, data: ForecastData, origins: Array, cfg: BoostedTreesConfig) -> Forecast:
    """Corrected profile, not below 0, and the trees' standard deviation: [S, W, H, N]."""
    profile = _profile(data, cfg)
    usual = _expected(data, profile, origins, cfg)  # [W, H, N]
    rows = [_rows(data, profile, origins, h, cfg) for h in range(cfg.horizon)]
    found = np.array(
        [[model.predict(one) for model, one in zip(models, rows, strict=True)] for models in params.models]
    )  # [S, H, W * N, 2]
    found = np.moveaxis(found.reshape(*found.shape[:2], len(origins), -1, 2), 1, 2)  # [S, W, H, N, 2]
    mean = np.maximum(usual + found[..., 0], 0.0)
    return Forecast(jnp.asarray(mean, jnp.float32), jnp.asarray(np.sqrt(found[..., 1] + EPS), jnp.float32))


def check_installed() -> None:
    """Refuses in one sentence where the package is not there."""
    if catboost is None:
        raise DataError(MISSING)


def num_leaves(params: BoostedTreesParams) -> int:
    """Numbers in the leaves of one seed's trees."""
    return sum(len(model.get_leaf_values()) for model in params.models[0])


def _profile(data: ForecastData, cfg: BoostedTreesConfig) -> Profile:
    _, by_type, by_day, plain = flow_profiles(data, cfg, "expanding", cfg.reach, cfg.reach)
    return back_off(by_type, back_off(by_day, plain, 0.0), DAY_TYPE_STRENGTH)


def _coming(origins: Array, cfg: BoostedTreesConfig) -> np.ndarray:
    return np.asarray(origins)[:, None] + 1 + np.arange(cfg.horizon)


def _level(data: ForecastData, profile: Profile, origins: Array, cfg: BoostedTreesConfig) -> np.ndarray:
    """How the whole city's window compares with its profile: 1 as usual, [W]."""
    flow, observed = (np.asarray(one) for one in flow_of(data.series))
    known = observed * (np.asarray(profile.count) > 0)  # the first day has no profile to be compared with
    past = np.asarray(origins)[:, None] - np.arange(cfg.history)  # [W, T]
    seen, usual = ((one * known)[past].sum(axis=(1, 2)) for one in (flow, np.asarray(profile.mean)))
    return (seen + cfg.prior_flow) / (usual + cfg.prior_flow)


def _expected(data: ForecastData, profile: Profile, origins: Array, cfg: BoostedTreesConfig) -> np.ndarray:
    """Profile times level, what the trees correct: [W, H, N]."""
    return np.asarray(profile.mean)[_coming(origins, cfg)] * _level(data, profile, origins, cfg)[:, None, None]


def _rows(data: ForecastData, profile: Profile, origins: Array, h: int, cfg: BoostedTreesConfig) -> np.ndarray:
    """Inputs [W * N, P] of the step h + 1 after each origin; NaN where a flow was not observed."""
    flow, observed = (np.asarray(one) for one in flow_of(data.series))
    usual, slot = np.asarray(profile.mean), np.asarray(data.series.slot)
    past = np.asarray(origins)[:, None] - np.arange(cfg.history)  # [W, T], newest first
    coming = _coming(origins, cfg)[:, h]  # [W]
    seen = np.where(observed > 0, flow, np.nan)
    excess = (seen - usual)[past]  # [W, T, N]
    recent = (flow * observed)[past].sum(axis=1) / np.maximum((usual * observed)[past].sum(axis=1), EPS)  # [W, N]
    around = _neighbours_mean(data, np.nan_to_num(seen - usual))[past[:, : cfg.neighbour_steps]]
    shape = recent.shape
    by_origin = [slot[coming] % cfg.steps_per_day, slot[coming] // cfg.steps_per_day]
    columns = [
        *np.moveaxis(excess, 1, 0),
        *np.moveaxis(around, 1, 0),
        usual[coming],
        usual[coming] * (recent - 1.0),
        recent,
        *(np.broadcast_to(one[:, None], shape) for one in by_origin),
        np.broadcast_to(np.arange(shape[1]), shape),
    ]
    return np.stack(columns, axis=-1).reshape(-1, len(columns)).astype(np.float32)


def _neighbours_mean(data: ForecastData, values: np.ndarray) -> np.ndarray:
    """Mean over each cell's senders but itself: [L, N]; 0 for a cell without."""
    senders, receivers = np.asarray(data.graph.senders), np.asarray(data.graph.receivers)
    senders, receivers = senders[senders != receivers], receivers[senders != receivers]
    total = np.zeros_like(values.T)
    np.add.at(total, receivers, values.T[senders])
    return (total / np.maximum(np.bincount(receivers, minlength=len(total)), 1)[:, None]).T


def _pools(data: ForecastData, profile: Profile, origins: Array, cfg: BoostedTreesConfig) -> list[Any]:
    """What each horizon's model learns from: the observed targets' distance from the profile times the level."""
    target, mask = (np.asarray(one) for one in targets(data.series, origins, cfg.horizon))  # [W, H, N]
    label = target - _expected(data, profile, origins, cfg)
    pools = []
    for h in range(cfg.horizon):
        kept = mask[:, h].ravel()
        pools.append(catboost.Pool(_rows(data, profile, origins, h, cfg)[kept], label[:, h].ravel()[kept]))
    return pools


def _grow(seed: int, train: Any, val: Any, cfg: BoostedTreesConfig) -> Any:
    model = catboost.CatBoostRegressor(
        iterations=cfg.trees,
        depth=cfg.depth,
        loss_function="RMSEWithUncertainty",
        early_stopping_rounds=cfg.patience,
        random_seed=seed,
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(train, eval_set=val, use_best_model=True)


METHOD = Method(
    "catboost",
    BoostedTreesConfig(),
    paper_label={"CatBoost + CP": "catboost"},
    tables={"forecasting": ("catboost",)},
    needs="catboost",
)
