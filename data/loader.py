"""npz shards -> arrays for the models; numpy on the host, memory-mapped.

A window is `window` steps of history and `horizon` steps of target, all inside one part of one fold: none crosses a gap
or a split.
"""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from data.errors import DataError
from data.spark_etl import shards
from stream_jax.types import ForecastData, RoadGraph, TrafficSeries, on_host

DAY_S = 86_400


@dataclasses.dataclass(frozen=True)
class TrafficDataset:
    """A dataset on disk: shards stay memory-mapped until their steps are read."""

    folder: Path
    manifest: dict
    graph: RoadGraph
    geometry: dict  # ids, position, lonlat, outline, outline_start, name
    maps: tuple[dict, ...]  # arrays of each shard, in order of time

    @property
    def names(self) -> list[str]:
        """What each cell is called: a sensor as in its file, a square or a zone by its number."""
        return self.geometry["name"].tolist()

    @property
    def num_folds(self) -> int:
        return len(self.manifest["split"]["folds"])

    def part(self, name: str, fold: int = 0) -> tuple[int, int]:
        """Half-open step range of a part: train, val, calibration or test."""
        return tuple(self.manifest["split"]["folds"][fold][name])

    def origins(self, name: str, fold: int = 0) -> np.ndarray:
        """Index of the last history step of every window of a part, ascending. [W] int32"""
        start, stop = self.part(name, fold)
        return np.arange(start + self.manifest["window"] - 1, stop - self.manifest["horizon"], dtype=np.int32)

    def steps(self, start: int, stop: int) -> shards.Shard:
        """The recording between two steps, read from the shards that hold them."""
        pieces = []
        for entry, arrays in zip(self.manifest["shards"], self.maps, strict=True):
            low, high = max(start, entry["start"]), min(stop, entry["start"] + entry["steps"])
            if low < high:
                inside = slice(low - entry["start"], high - entry["start"])
                pieces.append([arrays[name][inside] for name in shards.Shard._fields])
        return shards.Shard(*(np.concatenate(field) for field in zip(*pieces, strict=True)))

    def series(self) -> TrafficSeries:
        """The whole recording with its calendar, for models that keep it on the device."""
        shard = self.steps(0, self.manifest["steps"])
        slot = self.slots(shard.time)
        clock = clock_of(slot, DAY_S // self.manifest["bin_s"])
        return TrafficSeries(on_host(shard.values), on_host(shard.observed), on_host(clock), on_host(slot))

    def forecast_data(self, fold: int = 0) -> ForecastData:
        """What a forecaster is fitted on."""
        train, val = self.origins("train", fold), self.origins("val", fold)
        return ForecastData(self.series(), self.graph, on_host(train), on_host(val))

    def slots(self, time: np.ndarray) -> np.ndarray:
        """Local step of the week of each time, 0 = Monday 00:00. [T] int32"""
        zone = ZoneInfo(self.manifest["timezone"])
        local = [datetime.fromtimestamp(int(second), UTC).astimezone(zone) for second in time]
        seconds = [moment.weekday() * DAY_S + moment.hour * 3600 + moment.minute * 60 for moment in local]
        return (np.array(seconds, np.int64) // self.manifest["bin_s"]).astype(np.int32)

    def events(self) -> dict[str, np.ndarray] | None:
        """Labels [L, N] and the list of incidents, or None when the recording has no incident log."""
        if self.manifest["events"] is None:
            return None
        return shards.read_arrays(self.folder / shards.EVENTS)


def load(folder: Path, verify: bool = False) -> TrafficDataset:
    """Opens a dataset; always checks its schema and shapes, and with `verify` every byte against its hashes."""
    manifest = shards.read_manifest(folder)
    if verify:
        shards.verify_content(folder, manifest)
    maps = tuple(shards.map_arrays(folder / entry["file"]) for entry in manifest["shards"])
    for entry, arrays in zip(manifest["shards"], maps, strict=True):
        shape = (entry["steps"], manifest["cells"], len(manifest["features"]))
        expected = {"time": shape[:1], "values": shape, "observed": shape}
        if {name: array.shape for name, array in arrays.items()} != expected:
            raise DataError(
                f"{folder / entry['file']} does not match the manifest; delete its folder and run etl again."
            )
    arrays = shards.read_arrays(folder / shards.GRAPH)
    senders, receivers, features = (on_host(arrays[name]) for name in ("senders", "receivers", "edge_features"))
    graph = RoadGraph(senders, receivers, features, on_host(arrays["position"].astype(np.float32)))
    geometry = {name: arrays[name] for name in ("ids", "position", "lonlat", "outline", "outline_start")}
    geometry["name"] = arrays.get("name", arrays["ids"].astype(np.str_))
    return TrafficDataset(folder, manifest, graph, geometry, maps)


def clock_of(slot: np.ndarray, steps_per_day: int) -> np.ndarray:
    """Sine and cosine of the time of day, then of the day of the week. [T, 4] float32"""
    day = 2 * np.pi * (slot % steps_per_day) / steps_per_day
    week = 2 * np.pi * slot / (7 * steps_per_day)
    return np.stack([np.sin(day), np.cos(day), np.sin(week), np.cos(week)], axis=1).astype(np.float32)
