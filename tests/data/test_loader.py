"""From shards to arrays: windows stay inside their part, the scaler sees the past alone, the calendar is local."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import loader
from data.errors import DataError
from data.spark_etl import shards
from data.spark_etl.split import split_recording

STEPS, CELLS, FEATURES, BIN_S = 200, 3, 2, 900
WINDOW, HORIZON = 12, 4
START = int(datetime(2014, 3, 8, 12, tzinfo=UTC).timestamp())  # New York springs forward the next morning
RNG = np.random.default_rng(0)
VALUES = RNG.gamma(2.0, 10.0, (STEPS, CELLS, FEATURES)).astype(np.float32)
OBSERVED = RNG.random(VALUES.shape) < 0.8
VALUES[~OBSERVED] = 0.0


def write_dataset(folder: Path, values: np.ndarray = VALUES, bounds: tuple[int, ...] = (0, 70, 71, STEPS)) -> Path:
    """A dataset of hand-made arrays, cut into shards at `bounds`."""
    folder.mkdir(parents=True, exist_ok=True)
    time = START + BIN_S * np.arange(STEPS)
    entries = []
    for start, stop in itertools.pairwise(bounds):
        shard = shards.Shard(time[start:stop], values[start:stop], OBSERVED[start:stop])
        name = f"shard-{start:07d}.npz"
        sha256 = shards.write_arrays(folder / name, **shard._asdict())
        entries.append({"file": name, "start": start, "steps": stop - start, "sha256": sha256})
    nodes = np.arange(CELLS, dtype=np.int32)
    cells = {"position": np.zeros((CELLS, 2)), "lonlat": np.zeros((CELLS, 2)), "outline": np.zeros((0, 2))}
    cells |= {"ids": nodes, "outline_start": np.zeros(CELLS + 1, int)}
    edges = {"senders": nodes, "receivers": nodes, "edge_features": np.zeros((CELLS, 3), np.float32)}
    files = {shards.GRAPH: shards.write_arrays(folder / shards.GRAPH, **cells, **edges)}
    (fold,) = split_recording(STEPS, 96, WINDOW, HORIZON)
    manifest = {
        "schema_version": shards.SCHEMA_VERSION,
        "timezone": "America/New_York",
        "bin_s": BIN_S,
        "steps": STEPS,
        "cells": CELLS,
        "features": ["flow", "speed"],
        "window": WINDOW,
        "horizon": HORIZON,
        "split": {"folds": [vars(fold)]},
        "events": None,
        "shards": entries,
        "files": files,
        "content_hash": shards.content_hash(folder, [entry["file"] for entry in entries] + list(files)),
    }
    shards.write_manifest(folder, manifest)
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> loader.TrafficDataset:
    return loader.load(write_dataset(tmp_path_factory.mktemp("dataset")), verify=True)


def only_split(folds: list, window: int, horizon: int) -> loader.TrafficDataset:
    """A dataset of which nothing but the split is known."""
    manifest = {"split": {"folds": [vars(fold) for fold in folds]}, "window": window, "horizon": horizon}
    return loader.TrafficDataset(Path(), manifest, None, {}, ())


@settings(max_examples=100, deadline=None)
@given(num_steps=st.integers(170, 4000), window=st.integers(1, 12), horizon=st.integers(1, 4))
def test_no_window_leaves_its_part_and_no_window_is_left_out(num_steps, window, horizon):
    folds = split_recording(num_steps, 96, window, horizon)
    dataset = only_split(folds, window, horizon)
    for fold in range(dataset.num_folds):
        for name in shards.PART_NAMES:
            start, stop = dataset.part(name, fold)
            origins = dataset.origins(name, fold)
            assert origins[0] - window + 1 == start and origins[-1] + horizon == stop - 1
            np.testing.assert_array_equal(np.diff(origins), 1)


def test_shards_stay_on_disk_as_memory_maps(dataset):
    assert len(dataset.maps) == 3
    assert all(isinstance(array, np.memmap) for arrays in dataset.maps for array in arrays.values())


def test_the_series_is_what_was_written_however_it_is_cut_into_shards(dataset, tmp_path):
    series = dataset.series()
    np.testing.assert_array_equal(series.values, VALUES)
    np.testing.assert_array_equal(series.observed, OBSERVED)
    whole = loader.load(write_dataset(tmp_path, bounds=(0, STEPS))).series()
    for one, other in zip(series, whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_slots_are_local_and_skip_the_hour_that_the_clock_skips(dataset):
    slot = dataset.series().slot
    # Saturday 2014-03-08 12:00 UTC is 07:00 in New York: day 5, quarter hour 28.
    assert slot[0] == 5 * 96 + 28
    # 17 hours = 68 steps later it is Sunday 00:00; eight steps on, at 02:00, the clock jumps to 03:00.
    assert slot[68] == 6 * 96 and slot[67] == 6 * 96 - 1
    assert slot[68 + 7] == 6 * 96 + 7 and slot[68 + 8] == 6 * 96 + 12
    # Sunday has 92 steps, then Monday is slot 0 again.
    assert slot[68 + 91] == 7 * 96 - 1 and slot[68 + 92] == 0


def test_slots_repeat_the_hour_that_happens_twice(dataset):
    first = int(datetime(2014, 11, 2, 5, tzinfo=UTC).timestamp())  # 01:00 summer time
    slot = dataset.slots(first + BIN_S * np.arange(9))
    assert slot.tolist() == [6 * 96 + quarter for quarter in (4, 5, 6, 7, 4, 5, 6, 7, 8)]


@settings(max_examples=50, deadline=None)
@given(step=st.integers(1_000_000, 2_400_000), zone=st.sampled_from(["America/New_York", "Australia/Lord_Howe"]))
def test_slots_agree_with_the_wall_clock(step, zone):
    dataset = loader.TrafficDataset(Path(), {"timezone": zone, "bin_s": BIN_S}, None, {}, ())
    moment = datetime.fromtimestamp(step * BIN_S, ZoneInfo(zone))
    expected = moment.weekday() * 96 + (moment.hour * 60 + moment.minute) // 15
    assert dataset.slots(np.array([step * BIN_S])).tolist() == [expected]


def test_the_clock_turns_once_a_day_and_once_a_week():
    clock = loader.clock_of(np.array([0, 24, 96, 2 * 96, 7 * 96 // 4]), 96)
    assert clock.dtype == np.float32
    np.testing.assert_allclose(clock[0], [0, 1, 0, 1], atol=1e-6)  # Monday 00:00
    np.testing.assert_allclose(clock[1, :2], [1, 0], atol=1e-6)  # 06:00
    np.testing.assert_allclose(clock[2, :2], [0, 1], atol=1e-6)  # midnight again
    np.testing.assert_allclose(clock[4, 2:], [1, 0], atol=1e-6)  # a quarter of the week
    week = loader.clock_of(np.arange(7 * 96), 96)
    assert len(np.unique(week.round(5), axis=0)) == 7 * 96  # every step of the week looks different


def test_a_shard_that_does_not_fit_the_manifest_is_named(tmp_path):
    folder = write_dataset(tmp_path)
    name = "shard-0000070.npz"
    one = {"time": np.arange(1), "values": VALUES[:1], "observed": OBSERVED[:1]}  # this shard holds one step
    for wrong in ({"time": np.arange(2)}, {"values": VALUES[:2]}, {"observed": OBSERVED[:1, :2]}, {"more": VALUES}):
        shards.write_arrays(folder / name, **one | wrong)
        with pytest.raises(DataError, match=f"{name} does not match the manifest"):
            loader.load(folder)
    with pytest.raises(DataError, match=f"{name} was altered"):
        loader.load(folder, verify=True)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        loader.load(folder)


def test_no_shard_is_read_before_its_steps_are(tmp_path):
    folder = write_dataset(tmp_path)
    dataset = loader.load(folder)
    day = timedelta(days=1) // timedelta(seconds=BIN_S)
    assert dataset.steps(60, 80).values.shape == (20, CELLS, FEATURES)  # across both borders
    np.testing.assert_array_equal(dataset.steps(60, 60 + day).time, START + BIN_S * np.arange(60, 60 + day))
