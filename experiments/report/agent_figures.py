"""Pictures of a learned controller: how it learned, what it did in an episode, which greens it chose for which flow."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.stages import agent_road
from sim.city_road import CityRoad
from sim.closures import RoadIncident
from sim.loop import Episode
from sim.nema import decode_action
from stream_jax.rl.agent import AgentConfig, Decision
from stream_jax.task import GREENS, PRICES, Limits

SOURCES = ("policy", "projected", "previous", "default plan", "longest queue", "least excess")
THROUGH = slice(1, 8, 2)  # NEMA phases 2, 4, 6, 8


def draw_all(
    folder: Path, curve: list[dict], episodes: list[Episode], place: Path, road: CityRoad, cfg: AgentConfig
) -> None:
    """Writes learning.png, episode.png, and greens.png or prices.png, to a folder."""
    draw_learning(folder / "learning.png", curve)
    shown = max(episodes, key=lambda one: (_interventions_at_incidents(one, place), len(one.scenario.incidents)))
    draw_episode(folder / "episode.png", shown, place, cfg.goal)
    draw = draw_greens if cfg.action == GREENS else draw_prices
    draw(folder / f"{cfg.action.name}.png", episodes, road)


def draw_learning(path: Path, curve: list[dict]) -> None:
    """Reward, share of safe episodes and of filtered steps over the iterations."""
    figure = Figure(figsize=(12, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, (name, title) in zip(
        axes,
        {"traffic": "traffic reward per step", "safe": "safe episodes", "intervened": "filtered steps"}.items(),
        strict=True,
    ):
        for kind, style in (("train", "o-"), ("validation", "s--")):
            points = [(row["iteration"], row[name]) for row in curve if row["kind"] == kind]
            if points:
                axis.plot(*zip(*points, strict=True), style, label=kind)
        axis.set(title=title, xlabel="iteration")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


def draw_episode(path: Path, episode: Episode, place: Path, limits: Limits) -> None:
    """Queues and the longest wait over one episode, with incidents shaded and the filter's interventions marked."""
    minutes = np.arange(episode.road.queue.shape[0])
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    per_signal = episode.road.queue.sum(-1)  # [T + 1, I]
    axes[0].plot(minutes, per_signal, color="0.8", lw=0.7)
    axes[0].plot(minutes, per_signal.mean(1), color="C0", label="mean of the intersections")
    axes[0].axhline(limits.queue, color="C3", ls=":", label="limit")
    axes[0].set(ylabel="halting vehicles", title=f"episode {episode.index}, seed {episode.scenario.seed}")
    axes[1].plot(minutes, episode.road.wait.max(1), color="C1", label="longest wait, s")
    axes[1].axhline(limits.wait, color="C3", ls=":", label="limit")
    axes[1].set(ylabel="seconds")
    made = _decisions(episode, place)
    axes[2].step(minutes[:-1], made.certificate.source, where="post", color="C2")
    changed = np.flatnonzero((made.action != made.proposed).any((1, 2)))
    axes[2].plot(changed + 0.5, made.certificate.source[changed], "o", color="C3", ms=4, label="changed by the filter")
    axes[2].set(yticks=range(len(SOURCES)), yticklabels=SOURCES, xlabel="minute", title="where the action came from")
    for incident in episode.scenario.incidents:
        start, end = _minutes(incident, episode)
        for number, axis in enumerate(axes):
            label = f"lane closed at intersection {incident.signal}" if number == 0 else None
            axis.axvspan(max(start, 0), end, color="C3", alpha=0.08, label=label)
    for axis in axes:
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110)


def draw_greens(path: Path, episodes: list[Episode], road: CityRoad) -> None:
    """Maximum green of the through phases and the guard, against the city's flow at the intersection."""
    plans = [decode_action(action, road.network.is_nema) for episode in episodes for action in episode.action]
    shown = (
        Choice("maximum green of through phases, s", [plan.max_green[:, THROUGH].mean(1) for plan in plans], 70.0),
        Choice("waiting guard, s", [plan.guard for plan in plans], 85.0),
    )
    _draw_choices(path, shown, episodes, road, "default plan")


def draw_prices(path: Path, episodes: list[Episode], road: CityRoad) -> None:
    """Prices of the through phases and of waiting, against the city's flow at the intersection."""
    told = [action for episode in episodes for action in episode.action]
    phase, waiting = PRICES.place("phase"), PRICES.place("waiting")
    shown = (
        Choice("price of through phases", [action[:, phase][:, THROUGH].mean(1) for action in told], 0.0),
        Choice("price of waiting", [action[:, waiting][:, 0] for action in told], 0.0),
    )
    _draw_choices(path, shown, episodes, road, "the look-ahead controller as it is tuned")


class Choice(NamedTuple):
    """Something that a controller sets."""

    title: str
    values: list[np.ndarray]  # of each control step, [I]
    usual: float  # what action 0 means


def _draw_choices(path: Path, shown: Sequence[Choice], episodes: list[Episode], road: CityRoad, dotted: str) -> None:
    usual = np.maximum(road.flow.mean(0), 1e-9)  # a signal beside the city has none
    flow = []
    for episode in episodes:
        first = episode.scenario.first_step + 60 * np.arange(len(episode.action)) // road.planner.cfg.bin_s
        flow += [road.flow[min(step, len(road.flow) - 1)] / usual for step in first]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axis, choice in zip(figure.subplots(1, 2), shown, strict=True):
        axis.plot(np.ravel(flow), np.ravel(choice.values), ".", ms=1.5, alpha=0.3)
        axis.set(xlabel="city's flow at the intersection / usual", ylabel=choice.title)
        axis.axhline(choice.usual, color="C3", ls=":")
    figure.suptitle(f"what the controller chose (dotted: {dotted})")
    figure.savefig(path, dpi=110)


def _interventions_at_incidents(episode: Episode, place: Path) -> int:
    """Control steps during incidents at which the filter changed what the policy proposed."""
    made = _decisions(episode, place)
    minute = np.arange(len(episode.action))
    during = np.zeros(len(minute), bool)
    for incident in episode.scenario.incidents:
        start, end = _minutes(incident, episode)
        during |= (minute >= start) & (minute < end)
    return int((during & (made.action != made.proposed).any((1, 2))).sum())


def _decisions(episode: Episode, place: Path) -> Decision:
    return agent_road.read_decisions(agent_road.decision_file(place, episode.index, episode.scenario))[0]


def _minutes(incident: RoadIncident, episode: Episode) -> tuple[float, float]:
    start, end = ((second - episode.scenario.warmup_s) / 60 for second in (incident.start_s, incident.end_s))
    return start, end
