"""How decisions align with the recording's incident log: rows of one detector, whatever made its decisions."""

import numpy as np

from data.loader import TrafficDataset
from experiments.stages.detection import Scored
from stream_jax.conformal import event_metrics


def alignment_rows(folds: list[Scored], rejected: list[np.ndarray], dataset: TrafficDataset) -> list[dict]:
    """Events hit within an hour and two hops, delay and apparent FDP of decisions [T, N], one array a fold."""
    found, chance = zip(*(aligned(*pair, dataset) for pair in zip(folds, rejected, strict=True)), strict=True)
    hit, delay = (np.concatenate([getattr(one, name) for one in found]) for name in ("is_hit", "delay_steps"))
    alarms = sum(one.num_alarms for one in found)
    weight = np.array([len(one.is_hit) for one in found])
    luck = np.average([part.mean() for part in chance], weights=np.maximum(weight, 1e-9))
    measured = {
        "events": len(hit),
        "event_recall": float(hit.mean()) if len(hit) else float("nan"),
        "event_recall_by_chance": float(luck),
        "event_recall_by_chance_upper": float(np.quantile(np.concatenate(chance), 0.95)),
        "alarms": alarms,
        "apparent_fdp": sum(one.apparent_fdp * one.num_alarms for one in found) / max(alarms, 1),
        "median_delay_steps": float(np.nanmedian(delay)) if hit.any() else float("nan"),
    }
    return [{"metric": name, "value": value} for name, value in measured.items()]


def aligned(
    one: Scored, rejected: np.ndarray, dataset: TrafficDataset
) -> tuple[event_metrics.EventMetrics, np.ndarray]:
    """One fold's alarms against the incidents that began in its test part, and the recall of shifted logs."""
    log, first = dataset.events(), one.time[0]
    is_here = (log["start"] >= first) & (log["start"] <= one.time[-1])
    here = {name: log[name][is_here] for name in ("cell", "start", "stop")}
    events = event_metrics.EventLog(here["cell"], here["start"] - first, here["stop"] - first)
    edges = (dataset.graph.senders, dataset.graph.receivers)
    return event_metrics.align_events(rejected, events, *edges), event_metrics.recall_by_chance(
        rejected, events, *edges
    )
