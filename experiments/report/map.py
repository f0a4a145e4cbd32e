"""What the report's two maps show: a day of the city with forecasts and detections, and an episode of the signals."""

import re
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from data.loader import DAY_S, TrafficDataset
from data.spark_etl import shards
from experiments.evaluation import decisions
from experiments.stages import detection, forecasting
from sim.city_road import kept_networks, vehicles_per_hour
from sim.demand import DEMAND_LEVELS
from sim.network import read_network

WIDTH = 560  # of a map, in its own units
OUTCOME = re.compile(rf"{forecasting.OURS}-fold(\d+)-[0-9a-f]+\.npz")
LEVEL = 0.05
SOURCES = ("policy", "projected", "previous plan", "default plan", "longest queue first", "least excess")


def city(out: Path, dataset: TrafficDataset) -> dict | None:
    """The last test day, one step ahead, first seed; None before the forecast stage has run."""
    found = newest((out / "forecast").glob(f"{forecasting.OURS}-fold*.npz"), OUTCOME)
    if found is None:
        return None
    fold = int(OUTCOME.fullmatch(found.name)[1])
    arrays = shards.read_arrays(found)
    steps = dataset.origins("test", fold)[-DAY_S // dataset.manifest["bin_s"] :] + 1  # target of each one-step forecast
    day = slice(-len(steps), None)
    lower, upper = arrays["interval_lower"][0, day, 0], arrays["interval_upper"][0, day, 0]
    mean, seen = arrays["forecast_mean"][0, day, 0], np.asarray(arrays["target"][day, 0], np.float64)
    scored = load_scored(out, fold, dataset)
    feature = dataset.manifest["features"][0]
    return shapes(dataset.geometry) | {
        "names": dataset.names,
        "unit": dataset.manifest["units"][feature],
        "clock": clock(dataset, steps),
        "busiest": int(np.nanargmax(mean.mean(axis=0))),
        "mean": numbers(mean),
        "lower": numbers(lower),
        "upper": numbers(upper),
        "width": numbers(np.asarray(upper, np.float64) - lower),
        "seen": numbers(np.where(arrays["mask"][day, 0], seen, np.nan)),
        "rejected": {name: marked(scored, name, steps) for name in ("by", "bh")} if scored else {},
        "labelled": labelled(dataset, steps),
    }


def road(control: Path, factor: float = 1.0, limit: int = 240) -> dict | None:
    """The first episode of every controller at every level; None before the control stage has run.

    Args:
        control: folder of the control stage.
        factor: on the levels' demand.
        limit: control steps that are shown at most.
    """
    nets = kept_networks(control)
    if not nets:
        return None
    network, runs = read_network(nets[-1]), []
    for level in DEMAND_LEVELS.values():
        rate = vehicles_per_hour(level, len(network.ids), factor)
        plain = sorted((control / "episodes" / f"{rate:g}").glob("*"))
        learned = sorted((control / level.name).glob("*/seed0"))
        for folder, name in [(one, one.name) for one in plain] + [(one, one.parent.name) for one in learned]:
            if (latest := newest(folder.glob("000-*.npz"))) is not None:
                runs.append({"level": level.name, "name": name} | episode(latest, level.limits.wait, limit))
    if not runs:
        return None
    size, (place,) = fitted([np.asarray(network.position, np.float64)], margin=40.0)
    links = {tuple(sorted((i, int(j)))) for i, row in enumerate(network.neighbours) for j in row if j >= 0}
    return {"size": size, "place": place, "links": sorted(links), "runs": runs, "sources": SOURCES}


def episode(path: Path, wait_limit: float, limit: int) -> dict:
    """Halting vehicles and longest wait of each intersection, and what the filter did where something learned acts."""
    arrays = shards.read_arrays(path)
    found = {
        "queue": numbers(arrays["queue"][:limit].sum(axis=-1)),
        "wait": numbers(arrays["wait"][:limit]),
        "limit": wait_limit,
    }
    decided = path.parent / "decisions" / path.name
    if decided.exists():
        found["source"] = [-1, *shards.read_arrays(decided)["source"][: limit - 1].tolist()]
    return found


def load_scored(out: Path, fold: int, dataset: TrafficDataset) -> detection.Scored | None:
    """Scores of the recording as it is, first seed: beside its own incidents where it has a log."""
    scenario = "incidents" if dataset.manifest["events"] else "clean"
    found = newest((out / "detect").glob(f"fold{fold}-seed0-{scenario}-*.npz"))
    arrays = shards.read_arrays(found) if found else {}
    return detection.Scored(**arrays) if arrays.keys() == set(detection.Scored._fields) else None


def marked(scored: detection.Scored, procedure: str, steps: np.ndarray) -> list[list[int]]:
    """Cells that a procedure rejects at each of these steps of the recording."""
    rejected = decisions.decided([scored], f"full+{procedure}", (LEVEL,))[LEVEL]
    row_of = {int(step): row for row, step in enumerate(scored.time)}
    return [np.flatnonzero(rejected[row_of[step]]).tolist() if step in row_of else [] for step in steps.tolist()]


def labelled(dataset: TrafficDataset, steps: np.ndarray) -> list[list[int]]:
    """Cells that the incident log names at each step."""
    events = dataset.events()
    return [] if events is None else [np.flatnonzero(events["label"][step]).tolist() for step in steps]


def shapes(geometry: dict[str, np.ndarray]) -> dict:
    """Outlines of the cells in the map's units, north up; sensors without an outline become dots."""
    start, outline = geometry["outline_start"], np.asarray(geometry["outline"], np.float64)
    rings = [outline[start[i] : start[i + 1]] for i in range(len(start) - 1)]
    if all(len(ring) > 2 for ring in rings):
        shrink = np.cos(np.radians(geometry["lonlat"][:, 1].mean()))  # degrees of longitude are shorter
        size, cells = fitted([ring * (shrink, 1.0) for ring in rings])
        return {"size": size, "cells": cells, "dots": False}
    size, cells = fitted([one[None] for one in np.asarray(geometry["position"], np.float64)], margin=10.0)
    return {"size": size, "cells": cells, "dots": True}


def fitted(rings: list[np.ndarray], margin: float = 3.0) -> tuple[list[float], list]:
    """Points moved and scaled into the map, y turned down. Args: rings: [P, 2] each."""
    points = np.concatenate(rings)
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    scale = (WIDTH - 2 * margin) / max(span[0], span[1] / 1.4)
    height = span[1] * scale + 2 * margin
    moved = [(ring - low) * scale + margin for ring in rings]
    placed = [np.stack([ring[:, 0], height - ring[:, 1]], axis=1).round(1).tolist() for ring in moved]
    return [round(float(span[0] * scale + 2 * margin), 1), round(float(height), 1)], placed


def clock(dataset: TrafficDataset, steps: np.ndarray) -> list[str]:
    """Local time at which each step begins."""
    zone = ZoneInfo(dataset.manifest["timezone"])
    seconds = dataset.manifest["start_s"] + dataset.manifest["bin_s"] * steps.astype(np.int64)
    return [f"{datetime.fromtimestamp(int(s), UTC).astimezone(zone):%a %d %b %H:%M}" for s in seconds]


def numbers(values: np.ndarray) -> list:
    """Nested lists for JSON: one decimal, null where not finite."""
    values = np.asarray(values, np.float64)
    return [[round(v, 1) if np.isfinite(v) else None for v in row] for row in values.tolist()]


def newest(files: object, pattern: re.Pattern | None = None) -> Path | None:
    """The file written last, of those whose whole name matches."""
    matching = [path for path in files if pattern is None or pattern.fullmatch(path.name)]
    return max(matching, key=lambda path: (path.stat().st_mtime, path.name), default=None)
