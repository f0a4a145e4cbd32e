"""The manifest of a dataset: what it holds, where it came from, what was dropped, how it is split, its hash."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.spark_etl import shards
from data.spark_etl.graph import Cells
from data.spark_etl.inputs import RawInputs
from data.spark_etl.schema import Box, CitySpec
from data.spark_etl.split import Fold


class Parts(NamedTuple):
    """A dataset whose shards are written and whose manifest is not."""

    box: Box | None
    units: dict[str, str]  # of each feature, in order
    first_s: int  # unix seconds of the first step's start
    num_steps: int
    folds: list[Fold]
    entries: list[shards.ShardEntry]
    cells: Cells
    edges: dict[str, np.ndarray]
    labels: dict[str, np.ndarray] | None
    counts: dict  # rows_in, dropped by reason, used
    names: list[str] | None = None  # of the cells in their order, where they have names of their own


def finish_dataset(folder: Path, spec: CitySpec, inputs: RawInputs, parts: Parts) -> dict:
    """Writes graph.npz, events.npz and manifest.json beside the shards; returns the manifest."""
    if parts.counts["rows_in"] != parts.counts["used"] + sum(parts.counts["dropped"].values()):
        raise RuntimeError(f"rows in are not used + dropped: {parts.counts}")
    called = {} if parts.names is None else {"name": np.array(parts.names, np.str_)}
    arrays = parts.edges | parts.cells._asdict() | called
    files = {shards.GRAPH: shards.write_arrays(folder / shards.GRAPH, **arrays)}
    if parts.labels is not None:
        files[shards.EVENTS] = shards.write_arrays(folder / shards.EVENTS, **parts.labels)
    manifest = {
        "schema_version": shards.SCHEMA_VERSION,
        "dataset": spec.dataset,
        "data": "synthetic" if inputs.synthetic else "real",
        "sources": inputs.describe(),
        "timezone": spec.timezone,
        "crs": "EPSG:4326; metres by a local equirectangular projection about the box",
        "box": dataclasses.asdict(parts.box) if parts.box else None,
        "square_m": None if spec.source in ("manhattan", "sensors") else spec.square_m,
        "bin_s": spec.bin_s,
        "steps": parts.num_steps,
        "start": _iso(parts.first_s),
        "start_s": parts.first_s,
        "cells": len(parts.cells.ids),
        "edges": len(parts.edges["senders"]),
        "features": list(parts.units),
        "units": parts.units,
        "rows": parts.counts,
        "window": spec.window,
        "horizon": spec.horizon,
        "split": {
            "kind": "rolling-origin" if len(parts.folds) > 1 else "chronological",
            "folds": [
                {name: list(bounds) for name, bounds in dataclasses.asdict(fold).items()} for fold in parts.folds
            ],
        },
        "events": _describe_events(parts.labels),
        "shards": [dataclasses.asdict(entry) for entry in parts.entries],
        "files": files,
        "content_hash": shards.content_hash(folder, [entry.file for entry in parts.entries] + list(files)),
    }
    shards.write_manifest(folder, manifest)
    return manifest


def _describe_events(labels: dict[str, np.ndarray] | None) -> dict | None:
    if labels is None:
        return None
    kinds = [str(kind) for kind in labels["kinds"]]
    return {"count": len(labels["start"]), "kinds": kinds, "labelled_cell_steps": int((labels["label"] > 0).sum())}


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()
