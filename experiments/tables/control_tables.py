"""Tables of the control stage from results rows: every controller at every level, and what certificates turned out."""

import numpy as np

from experiments.cli.networks import city_of
from experiments.tables.table_cells import measured

HINDSIGHT = "best_in_hindsight"  # stands among the controllers of the rows and is none
CONTROL = {
    "safety": "safe episodes",
    "violating_steps": "violating steps",
    "steps_over_queue": "over queue",
    "steps_over_wait": "over wait",
    "reward": "reward",
    "travel_time": "travel time, s",
    "mean_queue": "queue",
    "wait": "wait, s",
    "longest_wait": "longest wait, s",
    "served": "served",
    "decrease_under_ours": "ρ under our L",
    "sumo_steps": "SUMO steps",
    "kept_iteration": "kept iteration, by seed (0: the start)",
}
PAIRED = {
    "safety": "safe",
    "violating_steps": "violating steps",
    "reward": "reward",
    "travel_time": "travel time, s",
}
REFERENCES = {"default": "default plan", "ours": "LyCon-WRL+"}
LIMITED = {"mean_queue": "queue at most {}", "longest_wait": "wait at most {} s", "served": "served at least {}"}
CERTIFICATE = {
    "decrease_share": "ρ_cert",
    "filtered_share": "filtered",
    "uncertified_share": "uncertified",
    "bound": "drift bound",
    "violation": "violation",
    "margin": "margin",
    "margin_coverage": "steps within it",
    "model_error": "ε_model",
    "lipschitz": "Lipschitz of L",
    "world_jacobian": "of the world model",
    "paper_epsilon_star": "paper's ε*, which certifies nothing",
}


def control_tables(rows: list[dict]) -> list[str]:
    """Every controller at every level of demand, the safest first, and paired differences; intervals are over hours."""
    lines = []
    for level in dict.fromkeys(row["level"] for row in rows if row.get("level")):
        here = [row for row in rows if row.get("level") == level]
        shown = {metric: title for metric, title in CONTROL.items() if any(row["metric"] == metric for row in here)}
        lines += [
            f"**Control, demand of {city_of(here[0])}**, preset `{here[0]['preset']}`, {level}{_hours(here)}."
            + _limits(here)
            + _elsewhere(here)
            + _in_hindsight(here),
            "",
            "| controller | seeds | " + " | ".join(shown.values()) + " |",
            "|---|---|" + "---|" * len(shown),
        ]
        for method in _safest_first(here):
            of = [row for row in here if row["method"] == method]
            cells = [_cell([row for row in of if row["metric"] == metric], metric) for metric in shown]
            seeds = len({row["seed"] for row in of if row["metric"] == "sumo_steps"})
            lines.append(f"| {method} | {seeds or ''} | " + " | ".join(cells) + " |")
        lines += ["", *_differences(here), *_certificates(here)]
    return lines


def _cell(rows: list[dict], metric: str) -> str:
    """A mean with its spread; of the iterations that were kept, all."""
    if metric == "kept_iteration":
        return ", ".join(str(row["value"]) for row in rows)
    return measured(rows, metric == "safety")


def _hours(rows: list[dict]) -> str:
    """How many test hours every controller drove, where the rows say so; the most and the least where they differ."""
    found = sorted({row["hours"] for row in rows if row["metric"] == "safety" and "hours" in row})
    return f", {' to '.join(str(count) for count in dict.fromkeys((found[0], found[-1])))} test hours" if found else ""


def _limits(rows: list[dict]) -> str:
    """A sentence with the level's limits, where the rows have them."""
    found = {row["metric"]: row["limit"] for row in rows if "limit" in row}
    named = [text.format(f"{found[metric]:g}") for metric, text in LIMITED.items() if metric in found]
    return f" Limits: {', '.join(named)}. Queue, wait and served are means over steps." if named else ""


def _elsewhere(rows: list[dict]) -> str:
    """A sentence about controllers that learned on another network."""
    found = {row["method"]: row["trained_on"] for row in rows if "trained_on" in row}
    named = ", ".join(f"{name} on {where}" for name, where in found.items())
    return f" Driven here as they learned elsewhere: {named}." if named else ""


def _in_hindsight(rows: list[dict]) -> str:
    """A sentence about the row that is no controller."""
    drives = {row["drives"] for row in rows if row["method"] == HINDSIGHT}
    return f" {HINDSIGHT} is no controller: of each hour the best of {max(drives)} drives." if drives else ""


def _safest_first(rows: list[dict]) -> list[str]:
    def standing(method: str) -> tuple[float, float]:
        of = {row["metric"]: row["value"] for row in rows if row["method"] == method and "value" in row}
        return -of.get("safety", 0.0), of.get("violating_steps", np.inf)

    return sorted(dict.fromkeys(row["method"] for row in rows), key=standing)


def _differences(rows: list[dict]) -> list[str]:
    """What each controller had more than another in the same hours; nothing where hours were not paired."""
    of = {(row["method"], row["metric"]): row for row in rows if "_minus_" in row["metric"]}
    shown = [end for end in REFERENCES if any(metric.endswith(f"_minus_{end}") for _, metric in of)]
    if not shown:
        return []
    columns = [(metric, end) for end in shown for metric in PAIRED]
    lines = [
        f"Differences at {rows[0]['level']} demand, hour by hour, with 95 % intervals over hours (mean over seeds "
        "within an hour); in bold those that leave zero out.",
        "",
        "| controller | " + " | ".join(f"{PAIRED[metric]}, minus {REFERENCES[end]}" for metric, end in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for method in _safest_first(rows):
        cells = [_difference(of.get((method, f"{metric}_minus_{end}")), metric) for metric, end in columns]
        if any(cells):
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _difference(row: dict | None, metric: str) -> str:
    if row is None:
        return ""
    digits, unit = {"safety": (0, 100), "reward": (3, 1), "violating_steps": (2, 1)}.get(metric, (1, 1))
    found = (unit * float(row[part]) for part in ("value", "lower", "upper"))  # one hour has infinite bounds
    value, low, high = (round(one, digits) + 0.0 for one in found)  # + 0.0: no minus before a zero
    text = f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]" + " points" * (metric == "safety")
    return f"**{text}**" if float(row["lower"]) > 0 or float(row["upper"]) < 0 else text


def _certificates(rows: list[dict]) -> list[str]:
    """What the filter and the drift bound did, mean over seeds; nothing where no controller learned."""
    learned = dict.fromkeys(row["method"] for row in rows if row["metric"] == "certificate_margin")
    if not learned:
        return []
    lines = [
        f"Certificates at {rows[0]['level']} demand, mean ± half a 95 % interval over seeds; shares are of steps. The "
        "margin is the upper confidence limit of the mean residual, which is what the drift bound needs; unlike a "
        "conformal one it does not promise to hold single steps.",
        "",
        "| controller | seeds | certified | " + " | ".join(CERTIFICATE.values()) + " |",
        "|---|---|---|" + "---|" * len(CERTIFICATE),
    ]
    for method in learned:
        of = [row for row in rows if row["method"] == method]
        verdicts = [row["value"] for row in of if row["metric"] == "certificate_verdict"]
        cells = [measured([row for row in of if row["metric"] == f"certificate_{metric}"]) for metric in CERTIFICATE]
        held = f"{verdicts.count('certified')} of {len(verdicts)}"
        lines.append(f"| {method} | {len(verdicts)} | {held} | " + " | ".join(cells) + " |")
    return [*lines, ""]
