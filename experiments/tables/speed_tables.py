"""The README's tables of what the benchmarks in experiments/bench measured, from their rows alone."""

from experiments.tables import paper


def etl_table(rows: list[dict]) -> list[str]:
    """The newest comparison and growth."""
    lines = ["**ETL on real T-Drive** (bzip2 parts, each version in a process of its own, start-up included).", ""]
    lines += ["| version | points | seconds | peak MB |", "|---|---|---|---|"]
    seen = {}
    for row in rows:
        seen[row["bench"], row["version"], row["points"]] = row
    for (bench, version, points), row in seen.items():
        name = version if bench == "compare" else f"{version}, growth"
        lines.append(f"| {name} | {points:,} | {row['seconds']} | {row['peak_mb']} |")
    return [*lines, ""]


def train_table(rows: list[dict]) -> list[str]:
    """Seconds per training step."""
    lines = [f"**Training step**, batch 64, 293 cells, the paper's sizes, {rows[-1]['device']}.", ""]
    lines += ["| seeds in one call | seconds per step | of that many single steps |", "|---|---|---|"]
    for row in {row["seeds"]: row for row in rows}.values():
        share = row["step_s"] / (row["seeds"] * row["single_s"])
        lines.append(f"| {row['seeds']} | {row['step_s']:.2f} | {share:.2f} |")
    return [*lines, ""]


def speed_of_detection(rows: list[dict]) -> list[str]:
    """Milliseconds of one step and of a day."""
    of = {row["call"]: row for row in rows}
    step, day = of["step"], of["day"]
    return [
        f"**Detection, speed**: one step of {step['cells']} cells against {step['calibration']:,} calibration scores "
        f"{1e3 * step['call_s']:.2f} ms, a day of {day['steps']} steps in one call {1e3 * day['call_s']:.1f} ms, "
        f"{step['device']}.",
        "",
    ]


def speed_of_the_road(rows: list[dict]) -> list[str]:
    """Simulated seconds per second by backend and processes."""
    lines = [f"**SUMO**, 4×4 grid, {rows[-1]['rate']:g} vehicles per hour, one process a core.", ""]
    lines += ["| backend | processes | simulated s per s | control steps per s |", "|---|---|---|---|"]
    for row in {(row["backend"], row["workers"]): row for row in rows}.values():
        pace = f"{row['simulated_s_per_s']:.0f} | {row['steps_per_s']:.1f}"
        lines.append(f"| {row['backend']} | {row['workers']} | {pace} |")
    return [*lines, ""]


def latency_table(rows: list[dict]) -> list[str]:
    """Milliseconds per control tick, beside the paper's and the rival's whole tick if it ran."""
    first = rows[0]
    lines = [
        f"**Latency of a control tick**, {first['cells']} cells, {first['intersections']} intersections, "
        f"{first['device']} ({first['machine']}); the paper's are from an A100."
        + " PyTorch's are of a script that is not part of this repository (`latency.py --rival SCRIPT`)."
        * any(row["method"] == "rival" for row in rows),
        "",
        "| component | paper, ms | median, ms | 95th percentile, ms |",
        "|---|---|---|---|",
    ]
    reported = paper.TABLES["latency"].rows
    value = {(row["method"], row["component"], row["metric"]): row["value"] for row in rows}
    for method, name in dict.fromkeys((row["method"], row["component"]) for row in rows):
        if method == "stream_jax" or name.startswith(RIVALS_TICK):
            theirs = f"{reported[name][0]:.1f}" if name in reported else ""
            variant = name.rpartition(", ")[2]
            shown = name if method == "stream_jax" else f"PyTorch's whole tick in turns with ours, {variant}"
            spent = " | ".join(f"{value[method, name, metric]:.2f}" for metric in ("ms", "p95_ms"))
            lines.append(f"| {shown} | {theirs} | {spent} |")
    return [*lines, ""]


def rollout_table(rows: list[dict]) -> list[str]:
    """Seconds of imagination and what they are compared with."""
    first = rows[0]
    lines = [
        f"**Imagination**, {first['starts']} starts × 5 members × 15 steps, {first['intersections']} intersections, "
        f"{first['hidden']} units wide, {first['device']}; the reference of the compiled call is a Python loop over "
        "members and steps, that of seeds together one compiled call per seed.",
        "",
        "| way | seeds | seconds | reference, s | times as fast |",
        "|---|---|---|---|---|",
    ]
    for row in {(row["way"], row["seeds"]): row for row in rows}.values():
        if row["way"] != "loop":
            pace = f"{row['run_s']:.3f} | {row['reference_s']:.3f} | {row['reference_s'] / row['run_s']:.2f}"
            lines.append(f"| {row['way']} | {row['seeds']} | {pace} |")
    return [*lines, ""]


def fresh_table(rows: list[dict]) -> list[str]:
    """Minutes that the README's commands take on a new machine, the newest row of each."""
    lines = [f"**A fresh clone**, new environment, empty caches, {rows[-1]['machine']}; minutes.", ""]
    lines += ["| command | installing | working | its stages |", "|---|---|---|---|"]
    for name, row in {row["command"]: row for row in rows}.items():
        stages = ", ".join(f"{stage} {seconds / 60:.1f}" for stage, seconds in row["stages"].items()) or row["said"]
        lines.append(f"| {FRESH[name]} | {row['install_s'] / 60:.1f} | {row['work_s'] / 60:.1f} | {stages} |")
    return [*lines, ""]


FRESH = {"run": "run, preset `smoke`", "default": "run, preset `default`", "test": "test"}
RIVALS_TICK = "W6"  # the rival's name for the whole tick
TABLES = {
    "fresh": fresh_table,
    "etl": etl_table,
    "train": train_table,
    "scoring": speed_of_detection,
    "latency": latency_table,
    "rollout": rollout_table,
    "simulator": speed_of_the_road,
}
