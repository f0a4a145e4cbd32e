"""A small recording written straight as a dataset, for tests that need one and do not test Spark."""

from pathlib import Path

import numpy as np

from data.spark_etl import assemble, graph
from data.spark_etl.inputs import RawInputs
from data.spark_etl.manifest import Parts, finish_dataset
from data.spark_etl.schema import UNITS, Box, CitySpec
from data.spark_etl.shards import Shard
from data.spark_etl.split import split_recording

BIN_S = 900
FIRST_S = 1_700_006_400  # a multiple of 900


def write_small_city(
    folder: Path, num_steps: int = 250, side: int = 3, seed: int = 0, names: list[str] | None = None
) -> Path:
    """Poisson counts around a daily profile on a side x side grid; speed unobserved, density equal to flow."""
    rng = np.random.default_rng(seed)
    step, cell = np.arange(num_steps), np.arange(side * side)
    daily = 1.2 + np.sin(2 * np.pi * step / 96)[:, None] * rng.uniform(0.5, 1.0, len(cell))
    flow = rng.poisson(8 * daily * rng.uniform(0.5, 2.0, len(cell)))
    values = np.stack([flow, np.zeros_like(flow), flow], axis=-1).astype(np.float32)
    observed = np.stack([np.ones_like(flow), np.zeros_like(flow), np.ones_like(flow)], axis=-1).astype(bool)
    spec = CitySpec("small", "tdrive", "UTC", Box(10.0, 50.0, 10.05, 50.05))
    cells = assemble.square_cells(cell // side * spec.columns + cell % side, spec)
    edges = graph.build_graph(
        cells.position, graph.square_neighbours(cells.ids, spec.columns), np.zeros((len(cell), len(cell)))
    )
    folder.mkdir(parents=True, exist_ok=True)
    entry = assemble.write_shard(folder, 0, Shard(FIRST_S + BIN_S * step, values, observed))
    counts = {"rows_in": int(flow.sum()), "dropped": {}, "used": int(flow.sum())}
    folds = split_recording(num_steps, 96, spec.window, spec.horizon)
    parts = Parts(spec.box, UNITS, FIRST_S, num_steps, folds, [entry], cells, edges, None, counts, names)
    finish_dataset(folder, spec, RawInputs((), synthetic=True), parts)
    return folder
