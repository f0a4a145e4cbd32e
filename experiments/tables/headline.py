"""The README's one table: what the paper reports of its own system, what ours measures, and on what."""

from typing import NamedTuple

from experiments.tables import ours, paper, table_cells


class Line(NamedTuple):
    """One quantity: a cell of a paper table, and whose rows answer it."""

    part: str
    what: str
    table: str
    row: str
    column: str
    dataset: str


ROAD = "synthetic-60-hours"  # the longest evaluation of the controllers
LINES = (
    Line("①", "NRMSE, one hour ahead", "forecasting", "PU-GAT+", "NRMSE", "tdrive"),
    Line("①", "the same, best reference (linear)", "forecasting", "linear_ar", "NRMSE", "tdrive"),
    Line("①", "coverage of 90 % intervals", "forecasting", "PU-GAT+", "coverage", "tdrive"),
    Line("①", "relative width of the intervals", "forecasting", "PU-GAT+", "RIW", "tdrive"),
    Line("②", "false-discovery rate, target 5 %", "anomaly", "CRFN-BY", "FDR", "tdrive"),
    Line("②", "recall of injected anomalies", "anomaly", "CRFN-BY", "recall", "tdrive"),
    Line("③", "safe episodes", "rl", "LyCon-WRL+", "safety", ROAD),
    Line("③", "the same, PPO", "rl", "PPO", "safety", ROAD),
    Line("③", "the same, default plan (kept by CPO, SAC-Lagrangian, LAMBDA)", "rl", "default_plan", "safety", ROAD),
    Line("③", "the same, short greens with guard", "rl", "static_20_45_guard", "safety", ROAD),
    Line("③", "steps that violate a limit, of 40", "rl", "LyCon-WRL+", "violations per episode", ROAD),
    Line("③", "reward", "rl", "LyCon-WRL+", "reward", ROAD),
    Line("all", "one control tick, ms", "latency", "Total", "ms", "bench"),
)
DOUBTED = "†"


def render(book: ours.Book) -> str:
    """Markdown; a quantity that was not measured has an empty cell."""
    lines = ["| | quantity | paper | ours | ours measured on |", "|---|---|---|---|---|"]
    for line in LINES:
        asked = ours.query(line.table, line.row, line.column, line.dataset)
        lines.append(f"| {line.part} | {line.what} | {_papers(line)} | {_ours(asked, book)} | {_where(asked, book)} |")
    foot = (
        f"{DOUBTED} cannot be true together with the paper's other numbers, see [docs/errata.md](docs/errata.md). "
        "± is half a 95 % interval over seeds, brackets are 95 % intervals. The paper's rewards have no unit."
    )
    return "\n".join([*lines, "", foot, ""])


def _papers(line: Line) -> str:
    table = paper.TABLES[line.table]
    if line.row not in table.rows:
        return ""
    cell = table.rows[line.row][table.columns.index(line.column) - 1]
    text = f"{cell[0]:g} ± {cell[1]:g}" if isinstance(cell, tuple) else f"{cell:g}"
    return text + (f" {DOUBTED}" if paper.doubts(line.table, line.row, line.column) else "")


def _ours(asked: ours.Query, book: ours.Book) -> str:
    found, rows = ours.answer(asked, book), ours.matching(asked, book)
    if found is None:
        return ""
    text = table_cells.number(found.value)
    if found.spread is not None:
        return f"{text} ± {table_cells.number(found.spread)}"
    has_interval = len(rows) == 1 and {"lower", "upper"} <= rows[0].keys()
    return text + (f" [{rows[0]['lower']:.3f}, {rows[0]['upper']:.3f}]" if has_interval else "")


def _where(asked: ours.Query, book: ours.Book) -> str:
    rows = ours.matching(asked, book)
    if not rows:
        return "not run"
    first = rows[0]
    if asked.dataset == "bench":
        return f"{first['cells']} cells, {first['intersections']} intersections; {first['device']}, {first['machine']}"
    amount = _driven(first) if "episodes" in first else _count(len({row.get("seed") for row in rows}))
    demand = "demand of the synthetic city" if asked.stage == "control" else f"{asked.dataset}, {first['data']} data"
    return ", ".join([f"{demand}; preset {first['preset']}", amount, *([first["device"]] if "device" in first else [])])


def _driven(row: dict) -> str:
    hours = f" of {row['hours']} test hours" if "hours" in row else ""
    return f"{row['episodes']} episodes{hours}"


def _count(seeds: int) -> str:
    return f"{seeds} seed" + "s" * (seeds > 1)
