"""Learning curves and the certificate's verdict, read from what training left in the run folder."""

import json
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

AGENT = {"reward": "reward", "safety": "safe share", "violation": "violation", "margin": "margin"}


def curves(out: Path) -> list[dict]:
    """Named series over epochs or iterations, one chart each."""
    return forecaster_curves(out / "forecast") + agent_curves(out)


def forecaster_curves(folder: Path) -> list[dict]:
    """Training and validation loss of every checkpointed fit, mean over seeds."""
    made = []
    for training in sorted(folder.glob("*-training")):
        steps = [int(path.name) for path in training.iterdir() if path.name.isdigit()]
        if not steps:
            continue
        with ocp.StandardCheckpointer() as reader:
            state = reader.restore((training / str(max(steps)) / "state").absolute())
        series = [
            {"name": name, "values": _mean_over_seeds(state[field])}
            for name, field in (("training loss", "train_loss"), ("validation loss", "val_loss"))
        ]
        made.append({"title": training.name.removesuffix("-training").rsplit("-", 1)[0], "series": series})
    return made


def agent_curves(out: Path) -> list[dict]:
    """What the controller's learning wrote down after each iteration, a chart per quantity."""
    made = []
    for name, rows in agent_logs(out):
        for metric, title in AGENT.items():
            values = [row[metric] for row in rows if isinstance(row.get(metric), int | float)]
            if len(values) > 1:
                made.append({"title": f"{name}: {title}", "series": [{"name": title, "values": values}]})
    return made


def agent_logs(out: Path) -> list[tuple[str, list[dict]]]:
    """The newest log of every learning run of a controller."""
    found = {}
    for path in sorted(out.glob("control/**/state/*/log/metadata"), key=lambda path: int(path.parts[-3])):
        found[path.parents[3]] = json.loads(path.read_text())["rows"]
    return [(folder.name, rows) for folder, rows in found.items()]


def verdicts(out: Path) -> list[tuple[str, dict]]:
    """The last certificate of each learning run."""
    found = []
    for name, rows in agent_logs(out):
        checked = [row for row in rows if "certified" in row]
        if checked:
            found.append((name, checked[-1]))
    return found


def _mean_over_seeds(values: np.ndarray) -> list[float]:
    values = np.asarray(values, np.float64)  # [S, epochs] NaN after stopping
    reached = values[:, ~np.isnan(values).all(axis=0)]
    return np.nanmean(reached, axis=0).round(5).tolist()
