"""Learning curves and certificates: the forecaster's from its checkpoints, the controllers' from the results rows."""

from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

AGENT = {"traffic": "traffic reward per step", "safe": "safe episodes", "intervened": "filtered steps"}
VERDICT = {
    "verdict": "certified, or what fails",
    "bound_upper": "bound on the mean violation, 95 %",
    "violation": "mean violation",
    "margin_coverage": "steps within the margin",
    "uncertified_share": "uncertified steps",
    "filtered_share": "filtered steps",
    "lipschitz": "Lipschitz bound of L",
    "model_error": "model error",
}


def curves(out: Path, learning: list[dict]) -> list[dict]:
    """Named series over epochs or iterations, one chart each."""
    return forecaster_curves(out / "forecast") + agent_curves(learning)


def forecaster_curves(folder: Path) -> list[dict]:
    """Training and validation loss of every checkpointed fit, mean over seeds."""
    made = []
    # Of several configurations in one folder the last one that was trained is shown.
    newest = {_stem(path): path for path in sorted(folder.glob("*-training"), key=lambda path: path.stat().st_mtime)}
    for title, training in sorted(newest.items()):
        steps = [int(path.name) for path in training.iterdir() if path.name.isdigit()]
        if not steps:
            continue
        with ocp.StandardCheckpointer() as reader:
            state = reader.restore((training / str(max(steps)) / "state").absolute())
        series = [
            {"name": name, "values": _mean_over_seeds(state[field])}
            for name, field in (("training loss", "train_loss"), ("validation loss", "val_loss"))
        ]
        made.append({"title": title, "series": series})
    return made


def agent_curves(points: list[dict]) -> list[dict]:
    """What validation showed after each iteration of learning, a line for each seed."""
    points = [point for point in points if point.get("kind") == "validation"]
    made = []
    for method in dict.fromkeys(row["method"] for row in points):
        mine = [row for row in points if row["method"] == method]
        for field, title in AGENT.items():
            series = [
                {"name": f"seed {seed}", "values": [row[field] for row in mine if row["seed"] == seed]}
                for seed in sorted({row["seed"] for row in mine})
            ]
            if any(len(one["values"]) > 1 for one in series):
                made.append({"title": f"{method}: {title}, validation", "series": series})
    return made


def verdicts(rows: list[dict]) -> str:
    """The certificates as a markdown table, one line for each learned controller, level and seed; empty without any."""
    found: dict[tuple, dict] = {}
    for row in rows:
        if row["metric"].startswith("certificate_"):
            place = (row["method"], row["level"], row["seed"])
            found.setdefault(place, {})[row["metric"].removeprefix("certificate_")] = row["value"]
    if not found:
        return ""
    lines = [f"| controller | demand | seed | {' | '.join(VERDICT.values())} |", "|---" * (3 + len(VERDICT)) + "|"]
    for place, values in found.items():
        cells = [*map(str, place), *(_word(values.get(name)) for name in VERDICT)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _stem(training: Path) -> str:
    """Method and fold of a training folder, without the mark of its configuration."""
    return training.name.removesuffix("-training").rsplit("-", 1)[0]


def _word(value: float | bool | str | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3f}" if isinstance(value, float) else str(value or "")


def _mean_over_seeds(values: np.ndarray) -> list[float]:
    values = np.asarray(values, np.float64)  # [S, epochs] NaN after stopping
    reached = values[:, ~np.isnan(values).all(axis=0)]
    return np.nanmean(reached, axis=0).round(5).tolist()
