"""Tables of how compiled roads agree with SUMO, and how fast they are, from rows alone."""

from pathlib import Path

from experiments.evaluation import results

NAMES = {
    "kendall_tau": "Kendall's tau",
    "queue_error": "queue, median error",
    "travel_time_error": "travel time, median error",
    "safe_agreement": "agreement on safe hours",
}


def render(folder: Path) -> str:
    """All tables as markdown; empty where nothing was judged or measured."""
    rows = [
        row
        for path in sorted(folder.glob("*/road.jsonl"))
        if path.parent.name != "bench"
        for row in results.read_rows(path)
    ]
    return "\n".join([*agreement(rows), *speed(results.read_rows(folder / "bench" / "road.jsonl"))])


def agreement(rows: list[dict]) -> list[str]:
    """A line for each network and level, with 95 % intervals."""
    if not rows:
        return []
    lines = [
        "| network, level | hours × controllers | " + " | ".join(NAMES.values()) + " |",
        "|---|---|" + "---|" * len(NAMES),
    ]
    found: dict[tuple, dict] = {}
    for row in rows:
        found.setdefault((row["network"], row["level"]), {})[row["metric"]] = row
    for (network, level), of in found.items():
        cells = [f"{of[name]['value']:.2f} ({of[name]['lower']:.2f} to {of[name]['upper']:.2f})" for name in NAMES]
        first = of["kendall_tau"]
        lines.append(f"| {network}, {level} | {first['hours']} × {first['controllers']} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def speed(rows: list[dict]) -> list[str]:
    """The newest row of each controller and number of environments."""
    if not rows:
        return []
    newest = {(row["controller"], row["environments"]): row for row in rows}
    lines = ["| controller | environments | simulated s per s | times libsumo |", "|---|---|---|---|"]
    for (controller, environments), row in newest.items():
        lines.append(f"| {controller} | {environments} | {row['simulated_s_per_s']:.0f} | {row['value']:.1f} |")
    return [*lines, ""]
