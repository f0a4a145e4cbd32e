"""Options that a run would not look at: said instead of ignored."""

import dataclasses
from collections.abc import Sequence

from data.errors import DataError
from data.spark_etl.schema import CITIES
from experiments.cli.options import RunOptions

TRACKS = ("tdrive", "porto", "geolife", "gps")  # sources of positions, which squares are laid over
READ_BY = {
    "columns": ("gps",),
    "time_format": ("gps",),
    "trips": ("manhattan",),
    "box": TRACKS,
    "square": TRACKS,
    "events": (*TRACKS, "manhattan"),  # sensors are points: no incident lies in one
    "adjacency": ("sensors",),
    "coordinates": ("sensors",),
    "feature": ("sensors",),
    "unit": ("sensors",),
    "time_column": ("sensors",),
    "missing_value": ("sensors",),
}


def refuse_unused(args: RunOptions, stages: Sequence[str]) -> None:
    """Raises DataError for an option that the dataset's reader does not know, or that no stage of the run reads."""
    usual = {option.name: option.default for option in dataclasses.fields(RunOptions)}
    source = CITIES[args.dataset].source
    for name, sources in READ_BY.items():
        if getattr(args, name) != usual[name] and source not in sources:
            datasets = ", ".join(dataset for dataset, spec in CITIES.items() if spec.source in sources)
            raise DataError(
                f"--{name.replace('_', '-')} says nothing about --dataset {args.dataset}; it is read for {datasets}. "
                "Leave it out."
            )
    if args.events is not None and "etl" not in stages:
        raise DataError("--events is read by the stage etl, which is not among those of this run; leave it out.")
