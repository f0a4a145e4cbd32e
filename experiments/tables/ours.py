"""Where our number for a cell of a paper table comes from: which results rows answer it, and their summary."""

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.evaluation import results
from experiments.methods import catalogue
from experiments.tables import paper

PRESETS = ("paper", "default", "smoke")  # the first that has rows is shown
CITIES = {"T-Drive": "tdrive", "GeoLife": "geolife", "Porto": "porto", "Manhattan": "manhattan"}
FORECASTERS = catalogue.labels(*catalogue.FORECASTERS.values())
AN_HOUR_AHEAD = {
    "NRMSE": "nrmse_h4",
    "MAE": "mae_h4",
    "coverage": "coverage_h4",
    "RIW": "riw_h4",
    "efficiency": "efficiency_h4",
}
DETECTORS = catalogue.labels(*catalogue.DETECTORS.values(), catalogue.OUR_DETECTOR)
# Their papers give them a threshold instead of a level.
OWN_THRESHOLD = ("isolation_forest", "pca", "usad", "omni_anomaly")
QUALITY = {
    "precision": "fdr_pooled",
    "recall": "recall",
    "F1": "f1",
    "FDR": "fdr_step",
    "event recall": "event_recall",
    "event FDR": "apparent_fdp",
}
CONTROLLERS = catalogue.labels(*catalogue.CONTROLLERS.values(), *catalogue.LEARNERS.values())
CONTROL = {
    "reward": "reward",
    "violations per episode": "violating_steps",
    "safety": "safety",
    "rho_Lyap": "certificate_decrease_share",
}
HEADLINE_LEVEL = "heavy"  # of demand
LAYERS = {"1": "gamma/*/layer_1/*", "2": "gamma/*/layer_2/*", "3": "gamma/*/layer_3/*", "sign flips": "gamma/*"}
EVENT_KINDS = {"Accidents": "accident", "Construction": "construction", "Weather": "weather", "Events/parades": "event"}


class Query(NamedTuple):
    """Which rows answer a cell; every field of `where` must be equal, the metric may have wildcards."""

    dataset: str
    stage: str
    where: dict
    metric: str
    summary: str = "mean"  # "mean" over seeds, "complement" of it, "sd" of all, "negative": share below zero


Book = dict[tuple[str, str], list[dict]]  # (dataset, stage) -> rows


class Answer(NamedTuple):
    """A number of ours."""

    value: float
    spread: float | None = None  # half a 95 % interval over seeds
    upper: float | None = None  # 95 % limit where the rows have one


def query(table: str, row: str, column: str, dataset: str, variant: str = "") -> Query | None:
    """The question behind one cell; None where nothing of ours corresponds.

    Args: variant: what follows a city's name in the folder whose rows are asked, such as -twin; "" is the recording.
    """
    match table:
        case "forecasting":
            return _forecast(dataset, row, column)
        case "cross_dataset":
            return _forecast(CITIES[column] + variant, row, "efficiency")
        case "datasets":
            city, method = row.split(", ")
            return _any_stage(CITIES[city] + variant, method, column)
        case "ablation":
            return _ablation(dataset, row, column)
        case "events":
            return _event(row, column, variant)
        case "gamma":
            return _gamma(dataset, row, column)
        case "latency":
            return Query("bench", "latency", {"component": row, "method": "stream_jax"}, column)
        case "eps_floor":
            return _floor(dataset, row, column)
        case "aci" | "clusters" | "trimming" | "delta" | "dependence":
            return Query(dataset, "sensitivity", {"method": table, "setting": row}, column)
    return _any_stage(dataset, row, column)


def answer(found: Query | None, book: Book) -> Answer | None:
    """The rows' summary, or None when nothing was run."""
    if found is None:
        return None
    rows = matching(found, book)
    values = np.array([row["value"] for row in rows], np.float64)
    if not rows or (found.summary == "sd" and len(rows) == 1):
        return None
    if found.summary in ("negative", "sd"):
        return Answer(float(np.mean(values < 0) if found.summary == "negative" else values.std(ddof=1)))
    seeds = sorted({row.get("seed") for row in rows}, key=str)
    by_seed = np.array([np.mean([row["value"] for row in rows if row.get("seed") == seed]) for seed in seeds])
    by_seed = 1.0 - by_seed if found.summary == "complement" else by_seed
    limits = [row["upper"] for row in rows if "upper" in row and found.stage == "sensitivity"]
    return Answer(
        float(by_seed.mean()),
        results.half_width(by_seed),
        float(np.max(limits)) if limits else None,
    )


def matching(found: Query, book: Book) -> list[dict]:
    """The rows behind a question; those whose value is no finite number are left out."""
    rows = [
        row
        for row in book.get((found.dataset, found.stage), ())
        if found.where.items() <= row.items() and fnmatchcase(row.get("metric", ""), found.metric)
    ]
    return [row for row in rows if not isinstance(row["value"], str)]


def load(folder: Path) -> Book:
    """Rows of every dataset and stage under a results folder."""
    return {(path.parent.name, path.stem): picked(path) for path in sorted(folder.glob("*/*.jsonl"))}


def picked(path: Path, network: str | None = None) -> list[dict]:
    """Rows of one run: the largest preset that has any, and of it the data that came last.

    Where a controller has learned to set prices and to set greens, only the former is shown.

    Args:
        network: on which the rows were measured; None is the preset's own grid, which the paper's tables are about.
    """
    rows = [row for row in results.of_one_action(results.read_rows(path)) if row.get("network") == network]
    for preset in PRESETS:
        mine = [row for row in rows if row.get("preset") == preset]
        if mine:
            return [row for row in mine if row.get("data_hash") == mine[-1].get("data_hash")]
    return rows


def networks(path: Path) -> list[str | None]:
    """The networks that a file has rows of, the presets' own (None) first."""
    return sorted({row.get("network") for row in results.read_rows(path)}, key=lambda name: (name is not None, name))


def others(table: str, book: Book, dataset: str) -> list[str]:
    """Methods that we ran and the paper's table does not have, as rows of their own."""
    stage, field, names = {
        "forecasting": ("forecast", "method", FORECASTERS),
        "anomaly": ("detect", "arm", DETECTORS),
        "rl": ("control", "method", CONTROLLERS),
    }.get(table, ("", "", {}))
    shown = {names[row] for row in paper.TABLES[table].rows if row in names}
    ran = dict.fromkeys(row[field] for row in book.get((dataset, stage), ()) if field in row)
    columns = paper.TABLES[table].columns[1:]
    return [
        name
        for name in ran
        if name not in shown and any(answer(query(table, name, column, dataset), book) for column in columns)
    ]


def _forecast(dataset: str, row: str, column: str) -> Query:
    return Query(dataset, "forecast", {"method": FORECASTERS.get(row, row), "fold": "all"}, AN_HOUR_AHEAD[column])


def _detect(dataset: str, row: str, column: str) -> Query:
    scenario = "incidents" if column.startswith("event") else "injected"
    arm = DETECTORS.get(row, row)
    level = None if arm.removesuffix(":counts") in OWN_THRESHOLD else 0.05
    where = {"arm": arm, "scenario": scenario, "level": level}
    return Query(dataset, "detect", where, QUALITY[column], "complement" if column == "precision" else "mean")


def _control(dataset: str, row: str, column: str) -> Query:
    where = {"method": CONTROLLERS.get(row, row), "level": HEADLINE_LEVEL}
    return Query(dataset, "control", where, CONTROL[column])


def _any_stage(dataset: str, row: str, column: str) -> Query | None:
    """The column says which stage answers; a name that no map has is one of our own methods."""
    stage = next((one for one in STAGES if column in one.metrics), None)
    if stage is None:
        return None
    if row not in stage.names and any(row in one.names for one in STAGES):
        return None
    return stage.build(dataset, row, column)


def _ablation(dataset: str, row: str, column: str) -> Query | None:
    """A change downstream of a stage leaves that stage's number as the full system has it."""
    order = [column in one.metrics for one in STAGES].index(True)
    changed = next(number for number, one in enumerate(STAGES) if row in one.names)
    return _any_stage(dataset, "Full STREAM-RL" if changed > order else row, column)


def _gamma(dataset: str, row: str, column: str) -> Query:
    method = "pu_gat_plus:unconstrained" if column.startswith("unconstrained") else "pu_gat_plus"
    summary = "negative" if row == "sign flips" else "sd" if column.endswith("sd") else "mean"
    return Query(dataset, "forecast", {"method": method}, LAYERS[row], summary)


def _floor(dataset: str, row: str, column: str) -> Query | None:
    """The floor enters the reported ratio alone, so the safety of the rollouts is one number for all rows."""
    if column == "safety":
        return _control(dataset, "LyCon-WRL+", column)
    found = _control(dataset, "LyCon-WRL+", "reward")
    suffix = "" if row == "0.1" else f"_{row}"  # the default has no suffix
    return found._replace(metric=f"certificate_model_error_relative{suffix}") if column == "model error" else None


def _event(row: str, column: str, variant: str) -> Query:
    city, what = column.rsplit(" ", 1)
    where = {"scenario": "incidents", "arm": "full+by", "level": 0.05}
    stem = {"count": "events", "recall": "event_recall"}[what]
    return Query(CITIES[city] + variant, "detect", where, stem if row == "Overall" else f"{stem}/{EVENT_KINDS[row]}")


class _Stage(NamedTuple):
    names: dict[str, str]
    metrics: dict[str, str]
    build: Callable[[str, str, str], Query | None]


STAGES = (
    _Stage(FORECASTERS, AN_HOUR_AHEAD, _forecast),
    _Stage(DETECTORS, QUALITY, _detect),
    _Stage(CONTROLLERS, CONTROL, _control),
)
