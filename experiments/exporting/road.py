"""What the signals did in the test episodes, a row each: the road at every signal, and the seconds of green."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from data.loader import TrafficDataset
from data.spark_etl import shards
from experiments.exporting.city import utc
from experiments.exporting.places import signals
from sim.city_road import vehicles_per_hour
from sim.demand import DEMAND_LEVELS
from sim.nema import existing_phases
from sim.network import Network

CONTROL_S = 60
VERSION = re.compile(r"-[0-9a-f]{10}$")  # of what a controller does, at the end of its folder's name


class Drive(NamedTuple):
    """One controller's episodes at one level of demand."""

    controller: str
    level: str
    seed: int
    folder: Path


class RoadTables(NamedTuple):
    """The two tables, and how many episodes were left out because an earlier version kept no times of them."""

    drives: pd.DataFrame
    plans: pd.DataFrame
    left_out: int


def road_tables(control: Path, network: Network, dataset: TrafficDataset) -> RoadTables:
    """All episodes of a control folder.

    `time` is the start of a control step of a minute. In `drives`, `queue` is the mean number of halting vehicles at a
    signal, `wait_s` the longest wait. In `plans`, `green_s` are the seconds of that minute that a phase was green.
    """
    places, left_out = signals(network, dataset), 0
    drives, plans = [], []
    for drive in drives_of(control, network):
        for path in sorted(drive.folder.glob("[0-9]*.npz")):
            arrays = shards.read_arrays(path)
            if arrays.get("first_step", np.array([-1])).item() < 0 or "green" not in arrays:
                left_out += 1
                continue
            about = {"controller": drive.controller, "level": drive.level, "seed": drive.seed}
            about["episode"] = int(path.name.partition("-")[0])
            time = _minutes(arrays, dataset)
            drives.append(_road(arrays, time, places).assign(**about))
            plans.append(_greens(arrays, time, places, existing_phases(network)).assign(**about))
    return RoadTables(_joined(drives), _joined(plans), left_out)


def drives_of(control: Path, network: Network) -> Iterator[Drive]:
    """What lies in a control folder; of several versions of a controller the one that drove last."""
    factor = re.search(r"-x([0-9.e+-]+)$", control.name)
    rates = {
        f"{vehicles_per_hour(level, len(network.ids), float(factor[1]) if factor else 1.0):g}": level.name
        for level in DEMAND_LEVELS.values()
    }
    found: dict[tuple[str, str, int], Path] = {}
    for folder in sorted(control.glob("episodes/*/*"), key=_written):
        found[VERSION.sub("", folder.name), rates.get(folder.parent.name, folder.parent.name), 0] = folder
    for level in DEMAND_LEVELS:
        for folder in sorted((control / level).glob("*/seed*"), key=_written):
            found[VERSION.sub("", folder.parent.name), level, int(folder.name.removeprefix("seed"))] = folder
    return (Drive(*key, folder) for key, folder in sorted(found.items()))


def _minutes(arrays: dict[str, np.ndarray], dataset: TrafficDataset) -> np.ndarray:
    """Unix seconds at which the episode's control steps begin. [T]"""
    begin = dataset.manifest["start_s"] + dataset.manifest["bin_s"] * int(arrays["first_step"].item())
    return begin + CONTROL_S * np.arange(len(arrays["green"]), dtype=np.int64)


def _road(arrays: dict[str, np.ndarray], time: np.ndarray, places: pd.DataFrame) -> pd.DataFrame:
    """The first row of a measurement is the end of the warm-up, which is left out."""
    columns = {"time": utc(np.repeat(time, len(places)))}
    columns |= {
        name: np.tile(places[of], len(time)) for name, of in (("signal", "name"), ("lon", "lon"), ("lat", "lat"))
    }
    columns["queue"] = arrays["queue"][1:].sum(axis=-1).reshape(-1)
    for name, of in (("wait_s", "wait"), ("served", "served"), ("arrived", "arrived")):
        columns[name] = arrays[of][1:].reshape(-1)
    return pd.DataFrame(columns)


def _greens(arrays: dict[str, np.ndarray], time: np.ndarray, places: pd.DataFrame, exists: np.ndarray) -> pd.DataFrame:
    signal, phase = np.nonzero(exists)
    columns = {
        "time": utc(np.repeat(time, len(signal))),
        "signal": np.tile(places["name"].to_numpy()[signal], len(time)),
    }
    columns |= {"phase": np.tile(phase + 1, len(time)), "green_s": arrays["green"][:, signal, phase].reshape(-1)}
    return pd.DataFrame(columns)


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def _written(folder: Path) -> tuple[float, str]:
    return max((path.stat().st_mtime for path in folder.glob("*.npz")), default=0.0), str(folder)
