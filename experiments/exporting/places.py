"""Where cells, sensors and signals are, as GeoJSON (RFC 7946, WGS 84) and as columns of tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import shapely
from shapely.geometry import mapping
from shapely.geometry.polygon import orient

from data.coverage import core_box, laid_over
from data.loader import TrafficDataset
from sim.city_road import is_at_real_place, kept_networks
from sim.network import Network, read_network

DIGITS = 7  # of degrees: a centimetre


def cell_places(dataset: TrafficDataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Name, longitude and latitude of each cell's centre; no degrees where only an adjacency places the sensors."""
    lonlat = dataset.geometry["lonlat"] if dataset.manifest["box"] else np.full((len(dataset.names), 2), np.nan)
    return np.array(dataset.names, object), *lonlat.round(DIGITS).T


def cells(dataset: TrafficDataset) -> dict:
    """A polygon for each cell, a point for each sensor."""
    start, outline = dataset.geometry["outline_start"], dataset.geometry["outline"]
    made = []
    for k, (name, lon, lat) in enumerate(zip(*cell_places(dataset), strict=True)):
        ring = outline[start[k] : start[k + 1]]
        shape = orient(shapely.Polygon(ring)) if len(ring) > 2 else shapely.Point(lon, lat)
        made.append(feature(None if np.isnan(lon) else shape, {"name": name, "lon": lon, "lat": lat}))
    return collection(made)


def signals(network: Network, dataset: TrafficDataset) -> pd.DataFrame:
    """Name, longitude and latitude of the signals, and whether they really stand there.

    A network that does not lie in the city is laid over its busy core, as the control stage does it.
    """
    is_real = is_at_real_place(network, dataset.geometry)
    lonlat = network.lonlat if is_real else _laid_over_the_core(network, dataset)
    lon, lat = np.full((2, len(network.ids)), np.nan) if lonlat is None else np.asarray(lonlat).round(DIGITS).T
    return pd.DataFrame({"name": network.ids, "lon": lon, "lat": lat, "real_place": is_real})


def network_of(control: Path) -> Network | None:
    """The network that a control folder was made for; None before the stage has run."""
    files = kept_networks(control)
    return read_network(files[-1]) if files else None


def points(table: pd.DataFrame) -> dict:
    """A table with lon and lat as points, all other columns as properties."""
    rows = table.drop(columns=["lon", "lat"]).to_dict("records")
    shapes = [
        None if np.isnan(lon) else shapely.Point(lon, lat) for lon, lat in zip(table["lon"], table["lat"], strict=True)
    ]
    return collection([feature(shape, row) for shape, row in zip(shapes, rows, strict=True)])


def feature(shape: shapely.Geometry | None, properties: dict) -> dict:
    """One thing with its place; what JSON does not have becomes null, a time its ISO form."""
    place = None if shape is None else mapping(shapely.transform(shape, lambda degrees: degrees.round(DIGITS)))
    return {"type": "Feature", "geometry": place, "properties": {k: _plain(v) for k, v in properties.items()}}


def collection(features: list[dict]) -> dict:
    """All features of a file."""
    return {"type": "FeatureCollection", "features": features}


def _plain(value: object) -> object:
    if isinstance(value, pd.Timestamp):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _laid_over_the_core(network: Network, dataset: TrafficDataset) -> np.ndarray | None:
    if not dataset.manifest["box"]:
        return None
    series = dataset.series()
    start, stop = dataset.part("train", dataset.num_folds - 1)
    flow = np.where(np.asarray(series.observed)[..., 0], np.asarray(series.values)[..., 0], 0.0)[start:stop].mean(0)
    return laid_over(core_box(dataset.geometry["lonlat"], flow), network.position.astype(np.float64))
