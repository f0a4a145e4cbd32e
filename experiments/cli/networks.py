"""Which road network a run's control stage is about: its name in rows and folders, and where its files lie."""

from pathlib import Path

from experiments.cli.options import SIDES, RunOptions
from sim.network import file_name


def grid_side(args: RunOptions) -> int:
    """Intersections a side of the grid that is asked for, or of the preset's."""
    return args.grid or SIDES[args.preset]


def network_name(args: RunOptions) -> str | None:
    """What rows and folders call the network; None is the preset's own grid under its own demand."""
    factor = _factor(args)
    if args.routes is not None:
        road, trips = file_name(args.network or args.routes), file_name(args.routes)
        return f"{road}-{trips if trips != road else 'trips'}{factor}"
    if args.network is not None:
        return file_name(args.network) + factor
    return grid_name(args) if factor or grid_side(args) != SIDES[args.preset] else None


def grid_name(args: RunOptions) -> str:
    """The name of a grid under its demand, the preset's own included."""
    side = grid_side(args)
    return f"grid-{side}x{side}" + _factor(args)


def _factor(args: RunOptions) -> str:
    return "" if args.demand_factor == 1 else f"-x{args.demand_factor:g}"


def city_of(row: dict) -> str:
    """The city of a results row and the kind of its data, with the network where it is not the preset's own."""
    where = f" on {row['network']}" if row.get("network") else ""
    return f"{row['dataset']} ({row['data']} data){where}"


def control_folder(out: Path, name: str | None = None) -> Path:
    """Where everything that the control stage makes on a network is kept."""
    return out / ("control" if name is None else f"control-{name}")


def report_file(out: Path, name: str | None = None) -> Path:
    """The page of a run, one for each network."""
    return out / ("report.html" if name is None else f"report-{name}.html")
