"""What the city's stages said, a row each: forecasts with their intervals, and detections."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from data.errors import DataError
from data.loader import TrafficDataset
from data.spark_etl import shards
from experiments.evaluation import decisions
from experiments.evaluation.decisions import HEADLINE, OURS
from experiments.exporting.places import cell_places
from experiments.stages.detection import Scored


def forecasts(out: Path, dataset: TrafficDataset, method: str, seed: int) -> pd.DataFrame | None:
    """Every forecast of the test parts, a row for each cell and horizon; None if the stage left none.

    `issued` is the end of the last step that the forecast knows, `time` the start of the step that it is about, and
    `horizon_min` the minutes from `issued` to the end of that step. `observed` is missing where nothing was seen.
    """
    made = [_fold_forecasts(path, dataset, fold, seed) for fold, path in _outcomes(out / "forecast", method)]
    return pd.concat(made, ignore_index=True).assign(method=method, seed=seed) if made else None


def detections(out: Path, dataset: TrafficDataset, seed: int) -> pd.DataFrame | None:
    """What CRFN-BY says of every cell and step of the test parts; None if the stage left nothing.

    `time` is the start of the step. `score` and `p` are missing for a cell that was not tested: it is not rejected.
    """
    scenario = "incidents" if dataset.manifest["events"] else "clean"
    found = _by_fold((out / "detect").glob(f"fold*-seed{seed}-{scenario}-*.npz"), r"fold(\d+)-.*")
    made = [_fold_detections(path, dataset, fold) for fold, path in found]
    return pd.concat(made, ignore_index=True).assign(level=HEADLINE, seed=seed) if made else None


def utc(seconds: np.ndarray) -> pd.Series:
    """Unix seconds as times with their zone."""
    return pd.Series(pd.to_datetime(np.asarray(seconds, np.int64), unit="s", utc=True)).dt.as_unit("ms")


def _fold_forecasts(path: Path, dataset: TrafficDataset, fold: int, seed: int) -> pd.DataFrame:
    about, arrays = dataset.manifest, shards.read_arrays(path)
    if seed >= len(arrays["forecast_mean"]):
        raise DataError(f"{path.name} has the seeds 0 to {len(arrays['forecast_mean']) - 1}; choose one with --seed.")
    origins = dataset.origins("test", fold).astype(np.int64)
    shape = (len(origins), about["horizon"], about["cells"])
    if arrays["forecast_mean"].shape[1:] != shape:
        raise DataError(f"{path} does not belong to the dataset beside it; run the forecast stage again.")
    lead = np.arange(about["horizon"])
    issued = about["start_s"] + about["bin_s"] * (origins + 1)  # [W]
    begins = issued[:, None] + about["bin_s"] * lead  # [W, H]
    wide = lambda values: np.broadcast_to(values, shape).reshape(-1)  # noqa: E731
    names, lon, lat = cell_places(dataset)
    return pd.DataFrame(
        {
            "issued": utc(wide(issued[:, None, None])),
            "time": utc(wide(begins[:, :, None])),
            "name": wide(names),
            "lon": wide(lon),
            "lat": wide(lat),
            "horizon_min": wide((about["bin_s"] // 60 * (lead + 1))[:, None]),
            "mean": arrays["forecast_mean"][seed].reshape(-1),
            "lower": arrays["interval_lower"][seed].reshape(-1),
            "upper": arrays["interval_upper"][seed].reshape(-1),
            "sigma": arrays["forecast_sigma"][seed].reshape(-1),
            "observed": np.where(arrays["mask"], arrays["target"], np.nan).reshape(-1),
            "unit": about["units"][about["features"][0]],
            "fold": fold,
        }
    )


def _fold_detections(path: Path, dataset: TrafficDataset, fold: int) -> pd.DataFrame:
    about, arrays = dataset.manifest, shards.read_arrays(path)
    if arrays.keys() != set(Scored._fields) or arrays["test"].shape[1] != about["cells"]:
        raise DataError(f"{path} does not belong to the dataset beside it; run the detect stage again.")
    scored = Scored(**arrays)
    tested = ~np.isnan(scored.test)
    p = np.where(tested, decisions.evidence(scored, OURS.partition("+")[0]), np.nan)
    rejected = decisions.decided([scored], OURS, (HEADLINE,))[HEADLINE]
    time = about["start_s"] + about["bin_s"] * scored.time.astype(np.int64)
    names, lon, lat = cell_places(dataset)
    wide = lambda values: np.broadcast_to(values, scored.test.shape).reshape(-1)  # noqa: E731
    columns = {"time": utc(wide(time[:, None])), "name": wide(names), "lon": wide(lon), "lat": wide(lat)}
    columns |= {"p": p.reshape(-1), "score": scored.test.reshape(-1), "rejected": rejected.reshape(-1)}
    return pd.DataFrame(columns | {"fold": fold})


def _outcomes(folder: Path, method: str) -> list[tuple[int, Path]]:
    stem = re.escape(method.replace(":", "-"))
    return _by_fold(folder.glob("*.npz"), rf"{stem}-fold(\d+)-[0-9a-f]+\.npz")


def _by_fold(files: Iterator[Path], pattern: str) -> list[tuple[int, Path]]:
    """The file of each fold that was written last, of those whose name matches; the fold is the pattern's group."""
    newest: dict[int, Path] = {}
    for path in sorted(files, key=lambda path: (path.stat().st_mtime, path.name)):
        if match := re.fullmatch(pattern, path.name):
            newest[int(match[1])] = path
    return sorted(newest.items())
