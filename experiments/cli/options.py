"""What `stream-jax run` can be told, and which stages that means; imports nothing heavy, so that --help is quick."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from data.errors import DataError
from data.spark_etl.schema import CITIES
from experiments.cli.reading import UNSET, merged, read
from experiments.methods import catalogue
from experiments.tables import paper

STAGES = ("etl", "forecast", "detect", "control", "report")
ACTIONS = ("prices", "greens")  # what learned controllers tell the signals
LEVELS = ("moderate", "heavy", "overload", "all")  # of demand
PRESETS = ("smoke", "default", "paper")
SIDES = {"smoke": 2, "default": 4, "paper": 4}  # intersections a side of each preset's grid
# What has to be there before a table can be drawn.
TABLE_STAGES = (
    dict.fromkeys(paper.TABLES, STAGES[: STAGES.index("control") + 1])
    | dict.fromkeys(paper.DETECT_TABLES, STAGES[: STAGES.index("detect") + 1])
    | dict.fromkeys(paper.FORECAST_TABLES, STAGES[: STAGES.index("forecast") + 1])
)

METHODS_HELP = (
    f"forecasters to compare: {', '.join(catalogue.FORECASTERS)} (the references persistence, historical_average, "
    "scaled_profile, linear_ar, and pu_gat_plus); <name>:<variant> changes one thing, such as stid:relative or "
    "pu_gat_plus:gamma_zero, and a variant that does not exist lists all"
)
DESCRIPTION = """\
Goes from raw recordings to results. Each stage reads what the one before it wrote, and is skipped if nothing changed.

  stream-jax run                                         the embedded synthetic city, default size
  stream-jax run --dataset porto --raw DIR               real files in DIR
  stream-jax run --dataset tdrive --preset smoke         a small synthetic twin where no files are found
  stream-jax run --dataset gps --raw my.csv --columns vehicle=id,time=ts,lon=x,lat=y --timezone Asia/Tokyo
  stream-jax run --dataset tdrive --table aci            one table of the paper, with what it needs
  stream-jax run --stage detect --detectors pca          other detectors beside ours
  stream-jax run --stage control --controllers default_plan lycon_wrl_plus cpo    only these controllers
  stream-jax run --stage control --action greens         as the published controllers have learned
  stream-jax run --stage control report --network my.net.xml --demand-factor 0.5   your own signals
  stream-jax run --network my.net.xml --routes my.rou.xml                          and your own trips
  stream-jax run --dataset sensors --raw metr.npz --coordinates sensors.csv --feature speed --unit mph

`python experiments/run.py` takes the same options.
"""
CONTROLLERS_HELP = (
    f"controllers to compare, without learning {', '.join(catalogue.CONTROLLERS)}; learned "
    f"{', '.join(catalogue.LEARNERS)} (lycon_wrl_plus and four without learning); <name>:<variant> changes one thing, "
    "such as lycon_wrl_plus:no_lyapunov, or ppo:following (with --action greens); one that does not exist lists all"
)
DETECTORS_HELP = (
    f"detectors to set beside CRFN-BY: {', '.join(catalogue.DETECTORS)} (none); those with a threshold of their own "
    "also as <name>:counts, on counts instead of residuals"
)
Stage = Literal[STAGES]  # type: ignore[valid-type]
Level = Literal[LEVELS]  # type: ignore[valid-type]


@dataclasses.dataclass(frozen=True)
class WhatToRun:
    """What to run."""

    dataset: Literal[tuple(CITIES)] = "synthetic"  # type: ignore[valid-type]
    """a city, or gps and sensors for your own files"""
    preset: Literal[PRESETS] = "default"  # type: ignore[valid-type]
    """smoke takes minutes; paper has the paper's sizes"""
    stage: Annotated[tuple[Stage, ...] | None, UNSET, tyro.conf.arg(metavar=f"{{{','.join(STAGES)}}} ...")] = None
    """only these stages (all)"""
    first: Annotated[Stage | None, UNSET, tyro.conf.arg(name="from")] = None
    """this stage and those after it"""
    table: Annotated[Literal[tuple(paper.TABLES)] | None, UNSET] = None  # type: ignore[valid-type]
    """only what this table of the paper needs, with the rivals in it; then the table"""
    dry_run: Annotated[bool, UNSET] = False
    """say what would run, how long it takes and how much disk it needs"""
    seeds: Annotated[int | None, UNSET, tyro.conf.arg(metavar="S")] = None
    """number of seeds, trained in one vmapped call (the preset's)"""
    folds: Annotated[int | None, UNSET, tyro.conf.arg(metavar="K")] = None
    """only the last K folds of a short recording"""
    methods: Annotated[tuple[str, ...] | None, UNSET, tyro.conf.arg(metavar="NAME ...", help=METHODS_HELP)] = None
    detectors: Annotated[tuple[str, ...] | None, UNSET, tyro.conf.arg(metavar="NAME ...", help=DETECTORS_HELP)] = None
    out: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="DIR")] = None
    """folder of this run (runs/<dataset>-<preset>)"""
    debug: Annotated[bool, UNSET] = False
    """show the whole trace of an error"""


@dataclasses.dataclass(frozen=True)
class Control:
    """Signals: which controllers drive which network."""

    levels: Annotated[tuple[Level, ...] | None, UNSET, tyro.conf.arg(metavar=f"{{{','.join(LEVELS)}}} ...")] = None
    """levels of demand (heavy; paper preset: all)"""
    episodes: Annotated[int | None, UNSET, tyro.conf.arg(metavar="N")] = None
    """episodes of each controller (the preset's)"""
    controllers: Annotated[tuple[str, ...] | None, UNSET, tyro.conf.arg(metavar="NAME ...", help=CONTROLLERS_HELP)] = (
        None
    )
    grid: Annotated[int | None, UNSET, tyro.conf.arg(metavar="N")] = None
    """an N×N grid, 2 to 10 (smoke preset: 2, others: 4)"""
    network: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="FILE")] = None
    """your own .net.xml or .sumocfg instead of a grid"""
    routes: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="FILE")] = None
    """your own trips, a .rou.xml for --network or a .sumocfg alone, instead of a city's; for controllers without
    learning"""
    demand_factor: Annotated[float, tyro.conf.arg(metavar="F")] = 1.0
    """multiplies the vehicles of every level, or of --routes"""
    action: Annotated[Literal[ACTIONS] | None, UNSET] = None  # type: ignore[valid-type]
    """what learned controllers set: the prices of the look-ahead controller, or maximum greens of the default plan
    (prices; with --trained, what the files there were learned with)"""
    trained: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="DIR")] = None
    """drive the final controllers in this folder instead of learning, also on another network than theirs:
    <out>/control/controllers of a run, or results/<name>/controllers"""
    workers: Annotated[int | None, UNSET, tyro.conf.arg(metavar="N")] = None
    """SUMO processes that run at the same time (one a core)"""


@dataclasses.dataclass(frozen=True)
class Recording:
    """Where the recording comes from."""

    raw: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="PATH")] = None
    """file or folder of raw files ($STREAM_DATA_DIR/<dataset>)"""
    require_real: Annotated[bool, UNSET] = False
    """refuse to fall back to a synthetic twin"""
    download: Annotated[bool, UNSET] = False
    """first fetch the official files into --raw (or <out>/raw)"""
    events: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="FILE")] = None
    """incident log: start,end,lon,lat,kind or NYPD collisions"""
    trips: Annotated[Literal["foil", "uber", "tlc"] | None, UNSET] = None
    """manhattan: which records, if several are there"""


@dataclasses.dataclass(frozen=True)
class OwnCity:
    """Your own city."""

    columns: Annotated[str | None, UNSET, tyro.conf.arg(metavar="NAMES")] = None
    """gps: vehicle=...,time=...,lon=...,lat=..."""
    time_format: Annotated[str, tyro.conf.arg(metavar="FORMAT")] = "iso"
    """gps: iso, unix, unix_ms or a pattern like dd/MM/yyyy HH:mm:ss"""
    timezone: Annotated[str | None, UNSET, tyro.conf.arg(metavar="ZONE")] = None
    """IANA zone of local times and of the calendar, such as Europe/Lisbon"""
    box: Annotated[str | None, UNSET, tyro.conf.arg(metavar="DEGREES")] = None
    """lon_min,lat_min,lon_max,lat_max in degrees (gps: around 99 % of the fixes)"""
    square: Annotated[float | None, UNSET, tyro.conf.arg(metavar="M")] = None
    """side of a grid square in metres"""
    cells: Annotated[int | None, UNSET, tyro.conf.arg(metavar="N")] = None
    """keep the N squares with the most flow; 0 keeps all"""
    bin_minutes: Annotated[int | None, UNSET, tyro.conf.arg(metavar="MIN")] = None
    """length of a step (15)"""
    adjacency: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="FILE")] = None
    """sensors: square weight matrix, csv, npy or npz"""
    coordinates: Annotated[Path | None, UNSET, tyro.conf.arg(metavar="FILE")] = None
    """sensors: csv of sensor,lon,lat"""
    feature: Annotated[str, tyro.conf.arg(metavar="NAME")] = "flow"
    """sensors: name of what is measured"""
    unit: Annotated[str, tyro.conf.arg(metavar="NAME")] = "vehicles per step"
    """sensors: its unit"""
    time_column: Annotated[str | None, UNSET, tyro.conf.arg(metavar="NAME")] = None
    """sensors: name of the time column (the first)"""
    missing_value: Annotated[float | None, UNSET, tyro.conf.arg(metavar="X")] = None
    """sensors: a reading that means no reading, such as 0"""


@dataclasses.dataclass(frozen=True)
class Spark:
    """Where the ETL runs."""

    master: Annotated[str | None, UNSET, tyro.conf.arg(metavar="URL")] = None
    """Spark master URL (local[*], or spark-submit's)"""
    memory: Annotated[str, tyro.conf.arg(metavar="SIZE")] = "3g"
    """heap of the driver and of each executor"""


@dataclasses.dataclass(frozen=True)
class RunOptions(WhatToRun, Control, Recording, OwnCity, Spark):
    """All options of a run; what stages are given."""


@dataclasses.dataclass(frozen=True)
class _Groups:
    """The options as the help groups them."""

    what: WhatToRun = WhatToRun()
    control: Control = Control()
    recording: Recording = Recording()
    own_city: OwnCity = OwnCity()
    spark: Spark = Spark()


def parse(words: Sequence[str] | None = None) -> RunOptions:
    """The options of a command line; without words, of this process."""
    return RunOptions(**merged(read(_Groups, DESCRIPTION, words, "run")))


def stages(args: RunOptions) -> list[str]:
    """The stages to run, in order; refuses what cannot be meant."""
    for name in ("seeds", "folds", "episodes", "workers"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise DataError(f"--{name} {getattr(args, name)} is not a positive number.")
    _check_network(args)
    if args.routes is not None:
        return ["control"]
    if args.table and (args.stage or args.first):
        raise DataError("--table runs what the table needs; leave --stage and --from out.")
    if args.table:
        return [*TABLE_STAGES[args.table], "table"]
    if args.stage and args.first:
        raise DataError("--stage names the stages and --from the first of them; give one of the two.")
    first = STAGES.index(args.first) if args.first else 0
    return [name for name in STAGES[first:] if not args.stage or name in args.stage]


def _check_network(args: RunOptions) -> None:
    if args.routes is not None:
        _check_routes(args)
    if args.grid is not None and args.network is not None:
        raise DataError("--grid generates a network and --network reads yours; give one of the two.")
    if args.grid is not None and not 2 <= args.grid <= 10:
        raise DataError(f"--grid {args.grid} is not between 2 and 10 intersections a side.")
    if not 0 < args.demand_factor < float("inf"):
        raise DataError(f"--demand-factor {args.demand_factor:g} is not a positive number.")
    if args.table and _is_another_road(args):
        raise DataError("--table is about the preset's own grid; leave --grid, --network and --demand-factor out.")


def _is_another_road(args: RunOptions) -> bool:
    return bool(args.network or args.demand_factor != 1 or args.grid not in (None, SIDES[args.preset]))


def _check_routes(args: RunOptions) -> None:
    others = [name for name in (*(args.stage or ()), args.first) if name not in (None, "control")]
    if others or args.table:
        raise DataError("--routes runs the stage control alone, without a city: leave --table, --from and --stage out.")
    if args.network is None and args.routes.suffix != ".sumocfg":
        raise DataError(f"--routes {args.routes} needs the --network that its trips lead through.")
    if args.grid is not None:
        raise DataError("--grid generates a network, and --routes leads through yours; give --network.")
