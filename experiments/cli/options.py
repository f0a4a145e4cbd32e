"""The command line of run.py: what may be said, and how it becomes a job."""

import argparse
import dataclasses
import importlib.util
import os
from pathlib import Path

from data.errors import DataError
from data.spark_etl.job import JobConfig
from data.spark_etl.schema import CITIES, Box
from data.spark_etl.sensors import SensorSource
from data.spark_etl.sources import GpsColumns
from experiments.cli import networks
from experiments.tables import paper

STAGES = ("etl", "forecast", "detect", "control", "report")
LEVELS = ("moderate", "heavy", "overload", "all")  # of demand
PRESETS = ("smoke", "default", "paper")
_DETECT, _CONTROL = ("etl", "forecast", "detect"), ("etl", "forecast", "detect", "control")
# What has to be there before a table can be drawn.
TABLE_STAGES = dict.fromkeys(("forecasting", "cross_dataset", "aci", "clusters", "gamma", "delta"), _DETECT[:2])
TABLE_STAGES |= dict.fromkeys(("anomaly", "trimming", "p_values", "dependence", "events", "latency"), _DETECT)
TABLE_STAGES |= dict.fromkeys(("rl", "ablation", "covariance", "eps_floor", "lyapunov", "datasets"), _CONTROL)

_OURS = "pu_gat_plus"
# Forecasters that a table compares, where it is not the default list.
TABLE_METHODS = dict.fromkeys(("aci", "clusters", "delta", "trimming", "p_values", "dependence", "events"), (_OURS,))
_REFERENCES = ("persistence", "historical_average", "scaled_profile", "linear_ar")
TABLE_METHODS["cross_dataset"] = TABLE_METHODS["datasets"] = ("staci", "ripcn", _OURS)
_RIVALS = ("stgcn", "graph_wavenet", "agcrn", "temperature_gat", "staci", "ripcn")
if importlib.util.find_spec("catboost"):  # an optional extra
    _RIVALS += ("catboost",)
TABLE_METHODS["forecasting"] = (*_REFERENCES, *_RIVALS, _OURS)
TABLE_METHODS["gamma"] = (_OURS, f"{_OURS}:unconstrained")
_CHANGES = ("gamma_zero", "unconstrained", "temperature", "single_stream", "mse")
TABLE_METHODS["ablation"] = (_OURS, *(f"{_OURS}:{name}" for name in _CHANGES))
# Detectors that a table sets beside CRFN-BY, where it is not none.
TABLE_DETECTORS = {"anomaly": ("isolation_forest", "omni_anomaly", "usad", "pca", "flow_quantile")}
# Controllers that a table compares, where it is not the default list; the reference is for paired differences.
_AGENT = "lycon_wrl_plus"
_WITHOUT_LEARNING = ("default_plan", "fixed_time", "webster", "max_pressure", "guarded_max_pressure")
TABLE_CONTROLLERS = {
    "rl": (*_WITHOUT_LEARNING, "ppo", "cpo", "sac_lagrangian", "la_mbda", _AGENT),
    "covariance": ("default_plan", f"{_AGENT}:diagonal", _AGENT, f"{_AGENT}:learned"),
    "lyapunov": ("default_plan", _AGENT, *(f"{_AGENT}:{name}" for name in ("no_lyapunov", "soft_0.1", "soft_1"))),
    "ablation": (
        "default_plan",
        _AGENT,
        *(f"{_AGENT}:{name}" for name in ("no_lyapunov", "no_uncertainty", "no_anomaly")),
    ),
    "eps_floor": ("default_plan", _AGENT),
}

METHODS_HELP = (
    "forecasters to compare (pu_gat_plus, pu_gat_plus:<variant>, the references persistence, historical_average, "
    "scaled_profile, linear_ar; only if named, the rivals graph_wavenet, stid, agcrn, stgcn, "
    "temperature_gat, cqr, deep_ensemble, staci, ripcn, catboost, the first six also as <name>:relative with levels "
    "relative to each window's mean, and pu_gat_ensemble: five of ours)"
)
DESCRIPTION = """\
From raw recordings to results: every stage reads what the one before it wrote and is skipped when nothing changed.

  python experiments/run.py                                   the embedded synthetic city, default size
  python experiments/run.py --dataset porto --raw DIR         real files in DIR
  python experiments/run.py --dataset tdrive --preset smoke   a small synthetic twin where no files are found
  python experiments/run.py --dataset gps --raw my.csv --columns vehicle=id,time=ts,lon=x,lat=y --timezone Asia/Tokyo
  python experiments/run.py --dataset tdrive --table aci      one table of the paper, with what it needs
  python experiments/run.py --stage detect --detectors pca    other detectors beside ours
  python experiments/run.py --stage control --controllers default_plan lycon_wrl_plus cpo   only these controllers
  python experiments/run.py --stage control report --network my.net.xml --demand-factor 0.5   your own signals
  python experiments/run.py --dataset sensors --raw metr.npz --coordinates sensors.csv --feature speed --unit mph
"""


def parser() -> argparse.ArgumentParser:
    """The parser of run.py."""
    top = argparse.ArgumentParser(description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    run = top.add_argument_group("what to run")
    run.add_argument("--dataset", choices=CITIES, default="synthetic")
    run.add_argument("--preset", choices=PRESETS, default="default", help="smoke: minutes; paper: the paper's sizes")
    run.add_argument("--stage", choices=STAGES, nargs="+", help="only these stages (all)")
    run.add_argument("--from", dest="first", choices=STAGES, help="this stage and those after it")
    run.add_argument(
        "--table", choices=paper.TABLES, help="only what this table of the paper needs, rivals included, then it"
    )
    run.add_argument("--dry-run", action="store_true", help="say what would run, how long and how much disk it takes")
    run.add_argument("--seeds", type=int, metavar="S", help="seeds, trained in one vmapped call (the preset's number)")
    run.add_argument("--folds", type=int, metavar="K", help="only the last K folds of a short recording")
    run.add_argument("--methods", nargs="+", help=METHODS_HELP)
    run.add_argument("--detectors", nargs="+", help="detectors to set beside CRFN-BY, such as pca usad:counts (none)")
    run.add_argument("--out", type=Path, help="folder of this run (runs/<dataset>-<preset>)")
    run.add_argument("--debug", action="store_true", help="show the whole trace of an error")
    _add_control(top.add_argument_group("control"))
    _add_raw(top.add_argument_group("where the recording comes from"))
    _add_own_city(top.add_argument_group("your own city"))
    spark = top.add_argument_group("Spark")
    spark.add_argument("--master", help="Spark master URL (local[*], or spark-submit's)")
    spark.add_argument("--memory", default="3g", help="heap of the driver and of each executor")
    return top


def _add_control(control: argparse._ArgumentGroup) -> None:
    control.add_argument("--levels", choices=LEVELS, nargs="+", help="levels of demand (heavy; paper preset: all)")
    control.add_argument("--episodes", type=int, metavar="N", help="episodes of each controller (the preset's number)")
    control.add_argument(
        "--controllers",
        nargs="+",
        help="controllers to compare (ours and four without learning), or all of these; learned ones are also "
        ":no_lyapunov, :soft_0.1, :soft_1, :no_uncertainty, :no_anomaly, :diagonal and :learned of ours (the last two "
        "are covariances of the city's cells), ppo, cpo, sac_lagrangian and la_mbda, and "
        ":following of these four (they begin with the plan that ours begins with, not with the default plan)",
    )
    control.add_argument("--grid", type=int, metavar="N", help="an N×N grid, 2 to 10 (smoke preset: 2, others: 4)")
    control.add_argument("--network", type=Path, metavar="FILE", help="your own .net.xml or .sumocfg instead of a grid")
    control.add_argument("--demand-factor", type=float, default=1.0, metavar="F", help="times the levels' vehicles (1)")
    control.add_argument(
        "--trained",
        type=Path,
        metavar="DIR",
        help="drive final controllers of this folder as they are instead of learning, also on another network than "
        "theirs: <out>/control/controllers of a run, or results/<name>/controllers",
    )
    control.add_argument("--workers", type=int, metavar="N", help="SUMO processes side by side (one a core)")


def _add_raw(raw: argparse._ArgumentGroup) -> None:
    raw.add_argument("--raw", type=Path, help="file or folder of raw files ($STREAM_DATA_DIR/<dataset>)")
    raw.add_argument("--require-real", action="store_true", help="refuse to fall back to a synthetic twin")
    raw.add_argument("--download", action="store_true", help="fetch the official files into --raw (or <out>/raw) first")
    raw.add_argument("--events", type=Path, help="incident log: start,end,lon,lat,kind or NYPD collisions")
    raw.add_argument("--trips", choices=("foil", "uber", "tlc"), help="manhattan: which records, if several are there")


def _add_own_city(own: argparse._ArgumentGroup) -> None:
    own.add_argument("--columns", help="gps: vehicle=...,time=...,lon=...,lat=...")
    own.add_argument(
        "--time-format", default="iso", help="gps: iso, unix, unix_ms or a pattern like dd/MM/yyyy HH:mm:ss"
    )
    own.add_argument("--timezone", help="IANA zone of local times and of the calendar, e.g. Europe/Lisbon")
    own.add_argument("--box", help="lon_min,lat_min,lon_max,lat_max in degrees (gps: around 99 %% of the fixes)")
    own.add_argument("--square", type=float, metavar="M", help="side of a grid square in metres")
    own.add_argument("--cells", type=int, metavar="N", help="keep the N squares with the most flow; 0 keeps all")
    own.add_argument("--bin-minutes", type=int, metavar="MIN", help="length of a step (15)")
    own.add_argument("--adjacency", type=Path, help="sensors: square weight matrix, csv, npy or npz")
    own.add_argument("--coordinates", type=Path, help="sensors: csv of sensor,lon,lat")
    own.add_argument("--feature", default="flow", help="sensors: name of what is measured")
    own.add_argument("--unit", default="vehicles per step", help="sensors: its unit")
    own.add_argument("--time-column", help="sensors: name of the time column (the first)")
    own.add_argument("--missing-value", type=float, help="sensors: a reading that means no reading, such as 0")


def stages(args: argparse.Namespace) -> list[str]:
    """The stages to run, in order; refuses what cannot be meant."""
    for name in ("seeds", "folds", "episodes", "workers"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise DataError(f"--{name} {getattr(args, name)} is not a positive number.")
    _check_network(args)
    if args.table and (args.stage or args.first):
        raise DataError("--table runs what the table needs; leave --stage and --from out.")
    if args.table:
        return [*TABLE_STAGES[args.table], "table"]
    if args.stage and args.first:
        raise DataError("--stage names the stages and --from the first of them; give one of the two.")
    first = STAGES.index(args.first) if args.first else 0
    return [name for name in STAGES[first:] if not args.stage or name in args.stage]


def job_config(args: argparse.Namespace) -> JobConfig:
    """The dataset's specification with what the command line overrides."""
    spec = CITIES[args.dataset]
    changes: dict = {}
    if args.timezone:
        changes["timezone"] = args.timezone
    if args.box:
        changes["box"] = parse_box(args.box)
    if args.square is not None:
        changes["square_m"] = _positive("--square", args.square)
    if args.cells is not None:
        if spec.source in ("manhattan", "sensors"):
            raise DataError(f"--cells chooses among squares; {args.dataset} has cells of its own, so leave it out.")
        changes["num_cells"] = _cells(args.cells)
    if args.bin_minutes is not None:
        changes["bin_s"] = _bin_seconds(args.bin_minutes)
    sensors = None
    if spec.source == "sensors":
        sensors = SensorSource(
            _matrix_path(args),
            args.adjacency,
            args.coordinates,
            args.feature,
            args.unit,
            args.time_column,
            args.missing_value,
        )
    return JobConfig(dataclasses.replace(spec, **changes), parse_columns(args.columns, args.time_format), sensors)


def raw_folder(args: argparse.Namespace) -> Path | None:
    """Where the user said, or where the environment says; None when neither holds the dataset."""
    if args.raw:
        return args.raw
    root = os.environ.get("STREAM_DATA_DIR")
    found = Path(root) / args.dataset if root else None
    return found if found and found.exists() else None


def parse_box(text: str) -> Box:
    """Four comma-separated degrees."""
    try:
        box = Box(*(float(number) for number in text.split(",")))
    except (TypeError, ValueError):
        raise DataError(f"--box {text!r} is not lon_min,lat_min,lon_max,lat_max in degrees.") from None
    if not (-180 <= box.lon_min < box.lon_max <= 180 and -90 <= box.lat_min < box.lat_max <= 90):
        raise DataError(f"--box {text!r} is empty or not on Earth; the order is lon_min,lat_min,lon_max,lat_max.")
    return box


def parse_columns(text: str | None, time_format: str) -> GpsColumns:
    """`vehicle=...,time=...,lon=...,lat=...`, any of which may be left out."""
    names = {}
    for pair in (text or "").split(","):
        key, _, value = pair.partition("=")
        if pair and (key not in ("vehicle", "time", "lon", "lat") or not value):
            raise DataError(
                f"--columns {pair!r} is not one of vehicle=, time=, lon=, lat= followed by a column's name."
            )
        if pair:
            names[key] = value
    return GpsColumns(**names, time_format=time_format)


def _check_network(args: argparse.Namespace) -> None:
    if args.grid is not None and args.network is not None:
        raise DataError("--grid generates a network and --network reads yours; give one of the two.")
    if args.grid is not None and not 2 <= args.grid <= 10:
        raise DataError(f"--grid {args.grid} is not between 2 and 10 intersections a side.")
    if not 0 < args.demand_factor < float("inf"):
        raise DataError(f"--demand-factor {args.demand_factor:g} is not a positive number.")
    if args.table and networks.network_name(args):
        raise DataError("--table is about the preset's own grid; leave --grid, --network and --demand-factor out.")


def _bin_seconds(minutes: int) -> int:
    if minutes <= 0 or 1440 % minutes:
        raise DataError(f"--bin-minutes {minutes} does not divide a day; use 5, 10, 15, 20, 30 or 60.")
    return 60 * minutes


def _positive(name: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise DataError(f"{name} {value:g} is not a positive number; give metres, such as 500.")
    return value


def _cells(number: int) -> int | None:
    if number < 0:
        raise DataError(f"--cells {number} is negative; 0 keeps every square that has flow.")
    return number or None


def _matrix_path(args: argparse.Namespace) -> Path:
    raw = raw_folder(args)
    if raw is None:
        raise DataError("Sensors need --raw: the csv, parquet or npz with one column a sensor.")
    if not raw.is_file():
        raise DataError(f"{raw} is not a file; --raw must name the csv, parquet or npz of the readings.")
    return raw
