"""Delays on RESCO's maps: every controller that was run here, and the published figures beside them."""

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from experiments.evaluation import results
from experiments.tables.resco_tables import PUBLISHED, methods_of, values_of

matplotlib.use("Agg")
MARKERS = "osD^vPX*"


def delays(rows: list[dict]) -> Figure:
    """A column for each map on a logarithmic scale; hollow marks are published figures of older SUMO releases."""
    maps = list(dict.fromkeys(row["map"] for row in rows))
    methods = methods_of(rows)
    figure = Figure(figsize=(1.25 * len(maps) + 3.2, 4.4), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(methods):
        found = {place: values_of(rows, name, method, "delay") for place, name in enumerate(maps)}
        found = {place: values for place, values in found.items() if values}
        where = np.array(list(found)) + 0.08 * (number - len(methods) / 2)
        mean = [np.mean(values) for values in found.values()]
        half = [results.half_width(values) or 0.0 for values in found.values()]
        style = {"fmt": MARKERS[number % len(MARKERS)], "markersize": 5, "capsize": 2, "linewidth": 1}
        axes.errorbar(where, mean, yerr=half, label=method, **style)
    known = [PUBLISHED[name] for name in maps]
    places = np.arange(len(maps)) + 0.36
    axes.plot(places, [one.greedy for one in known], "o", mfc="none", color="0.4", label="published greedy")
    axes.plot(
        places, [one.best for one in known], "*", mfc="none", color="0.4", label="published learner, best episode"
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xticks(range(len(maps)), maps, fontsize=8)
    axes.set_ylabel("delay, s per trip")
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.grid(axis="y", alpha=0.3)
    figure.suptitle("RESCO's maps, means over seeds with 95 % intervals", fontsize=10)
    return figure
