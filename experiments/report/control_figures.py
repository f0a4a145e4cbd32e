"""Figures of the control stage: safety by controller, travel time against waiting, and one episode minute by minute."""

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.cli.networks import city_of
from sim.loop import Episode

matplotlib.use("Agg")
MARKERS = "os^"  # after ten colours
UNAWARE = ":no_uncertainty"  # ends the name of the learner that does not hear how sure the forecast is
FOLLOWING = ":following"  # and that of a rival which begins with the plan of ours
OURS = "lycon_wrl_plus"
WAITS = (60, 120, 240, 480, 960, 1920)  # s, on a logarithmic axis


def draw_all(
    folder: Path, rows: list[dict], found: dict[str, dict[str, list[Episode]]], points: list[dict] = ()
) -> None:
    """Draws every figure.

    Args:
        found: the episodes of this run by level and controller.
        points: of the curves of those that learned.
    """
    folder.mkdir(parents=True, exist_ok=True)
    safety(rows).savefig(folder / "safety.png", dpi=130)
    trade_off(rows).savefig(folder / "trade_off.png", dpi=130)
    if points:
        learning_curves(points).savefig(folder / "learning_curves.png", dpi=130)
    for level, driven in found.items():
        episodes = {name: runs for name, runs in driven.items() if runs}
        if episodes:
            one_episode(episodes, level).savefig(folder / f"episode_{level}.png", dpi=130)


def safety(rows: list[dict]) -> Figure:
    """Share of safe episodes with Wilson's interval, a panel per level."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    figure = Figure(figsize=(4.2 * len(levels), 4), layout="constrained")
    names = list(dict.fromkeys(row["method"] for row in rows))
    for axes, level in zip(np.atleast_1d(figure.subplots(1, len(levels), sharey=True)), levels, strict=True):
        picked = [row for row in rows if (row["level"], row["metric"]) == (level, "safety")]
        place = [len(names) - names.index(row["method"]) for row in picked]
        value = np.array([row["value"] for row in picked])
        error = np.abs(np.array([[row["lower"], row["upper"]] for row in picked]).T - value)
        axes.barh(place, value, xerr=error, color="tab:blue", alpha=0.7, error_kw={"linewidth": 1})
        axes.set_yticks(len(names) - np.arange(len(names)), names, fontsize=8)
        numbers = " or ".join(str(number) for number in sorted({row["episodes"] for row in picked}))
        axes.set(xlim=(0, 1), xlabel="share of safe episodes", title=f"{level}, {numbers} episodes")
    figure.suptitle(_title(rows), fontsize=10)
    return figure


def trade_off(rows: list[dict]) -> Figure:
    """Median travel time against the median longest wait, both to be small, a panel per level."""
    levels = list(dict.fromkeys(row["level"] for row in rows))
    names = list(dict.fromkeys(row["method"] for row in rows))
    figure = Figure(figsize=(4.2 * len(levels) + 1.6, 4), layout="constrained")
    for axes, level in zip(np.atleast_1d(figure.subplots(1, len(levels))), levels, strict=True):
        here = [row for row in rows if row["level"] == level]
        for place, name in enumerate(names):
            at = {row["metric"]: row for row in here if row["method"] == name}
            if not {"longest_wait_median", "travel_time_median"} <= set(at):  # not run, or before medians were kept
                continue
            x, y = at["longest_wait_median"], at["travel_time_median"]
            error = {"xerr": _bars(x), "yerr": _bars(y)}
            style = {"color": f"C{place % 10}", "marker": MARKERS[place // 10], "linewidth": 0.6, "label": name}
            axes.errorbar(x["value"], y["value"], **error, **style, linestyle="none")
            axes.axvline(at["longest_wait"]["limit"], color="0.6", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", xlabel="longest wait of an episode, s", ylabel="travel time, s", title=level)
        axes.set_xticks(WAITS, [str(wait) for wait in WAITS])
        axes.minorticks_off()
    listed = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    drawn = {label: handle for pairs in listed for handle, label in pairs}
    figure.legend(drawn.values(), drawn, loc="outside right upper", fontsize=7)
    figure.suptitle(_title(rows), fontsize=10)
    return figure


class Panels(NamedTuple):
    """A row of the learning curves."""

    what: str  # of the learners it is about
    methods: list[str]
    with_band: list[str]  # of the methods
    since_start: bool  # what changed since a seed's first validation: seeds meet other hours, easy or hard ones


def learning_curves(points: list[dict]) -> Figure:
    """Validation over the share of the budget, mean over seeds, in rows of panels as `curve_panels` has them."""
    names = {"violating": "violating steps of an episode", "traffic": "traffic reward per step"}
    groups = curve_panels(list(validations(points, "violating")))
    figure = Figure(figsize=(11, 3.4 * len(groups)), layout="constrained")
    places = figure.subplots(len(groups), 2, squeeze=False)
    for column, (metric, title) in enumerate(names.items()):
        found = validations(points, metric)
        for axes, group in zip(places[:, column], groups, strict=True):
            for place, method in enumerate(group.methods):
                x, seen = list(found[method]), np.array(list(found[method].values()))  # [P], [P, seeds]
                seen = seen - seen[0] if group.since_start else seen
                style = {"color": f"C{place % 10}", "linestyle": ("-", "--", ":")[place // 10 % 3]}
                axes.plot(x, seen.mean(1), marker="o", markersize=3, label=method, **style)
                if method in group.with_band:
                    axes.fill_between(x, seen.min(1), seen.max(1), color=f"C{place % 10}", alpha=0.12)
            axes.set(xlabel="share of the simulated steps", title=title + ", change" * group.since_start)
    for axes, group in zip(places[:, -1], groups, strict=True):
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, title=group.what, title_fontsize=8)
    figure.suptitle(f"{city_of(points[0])}: validation while learning; bands from seed to seed", fontsize=10)
    return figure


def curve_panels(learners: list[str]) -> list[Panels]:
    """Rows of panels: all methods; ours and rivals from our start; ours with and without uncertainty; other ablations.

    All but the first show what learning changed, on scales of their own; a row without learners is left out.
    Ours comes first everywhere, so that a method and its variant from our start have the same colour.
    """
    whole = sorted((method for method in learners if ":" not in method), key=lambda method: (method != OURS, method))
    following, unaware = (sorted(one for one in learners if one.endswith(end)) for end in (FOLLOWING, UNAWARE))
    other = sorted(method for method in learners if ":" in method and method not in following + unaware)
    full = [method for method in whole if any(one.startswith(f"{method}:") for one in unaware + other)]
    ours = [method for method in whole if method == OURS]
    groups = [
        Panels("all methods", whole, whole, False),
        Panels("all from the same plan", ours + following, ours + following, True) if following else None,
        Panels("uncertainty", full + unaware, full + unaware, True) if unaware else None,
        Panels("ablations", full + other, full, True) if other else None,
    ]
    return [group for group in groups if group and group.methods]


def validations(points: list[dict], metric: str) -> dict[str, dict[float, list[float]]]:
    """Of each learner: its values at every validation, by the share of its simulated steps made until then."""
    found: dict[str, dict[float, list[float]]] = {}
    for method, seed in dict.fromkeys((point["method"], point["seed"]) for point in points):
        mine = [point for point in points if (point["method"], point["seed"]) == (method, seed)]
        made = np.cumsum([point.get("episodes", 1) for point in mine])
        for point, done in zip(mine, made / made[-1], strict=True):
            if point["kind"] == "validation":
                found.setdefault(method, {}).setdefault(round(float(done), 3), []).append(float(point[metric]))
    return found


def one_episode(episodes: dict[str, list[Episode]], level: str) -> Figure:
    """Halting vehicles and the longest wait in the episode where the controllers differ most."""
    common = min(len(runs) for runs in episodes.values())
    queues = {name: [run.road.queue.sum(-1).mean(-1) for run in runs[:common]] for name, runs in episodes.items()}
    spread = [np.ptp([of[i].mean() for of in queues.values()]) for i in range(common)]
    chosen = int(np.argmax(spread))
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for place, (name, runs) in enumerate(episodes.items()):
        style = {"label": name, "linewidth": 1, "linestyle": ("-", "--", ":")[place // 10 % 3]}
        left.plot(queues[name][chosen], **style)
        right.plot(runs[chosen].road.wait.max(-1), **style)
    left.set(xlabel="control step", ylabel="halting vehicles per intersection")
    right.set(xlabel="control step", ylabel="longest wait, s", yscale="symlog")
    figure.legend(*right.get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    figure.suptitle(f"{level}: the episode where the controllers differ most", fontsize=10)
    return figure


def _bars(row: dict) -> list[list[float]]:
    """How far the interval reaches below and above the value."""
    return [[row["value"] - row["lower"]], [row["upper"] - row["value"]]]


def _title(rows: list[dict]) -> str:
    return f"{city_of(rows[0])}, 95 % intervals"
