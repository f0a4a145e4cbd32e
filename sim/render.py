"""A picture of the road: a bar per phase for its queue at every intersection, coloured by the longest wait."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from sim.network import Network
from stream_jax.types import RoadMeasurement

WAIT_LIMIT_S = 120.0  # where the colour is fully red
QUEUE_SHOWN = 20.0  # vehicles that fill the space to the next intersection
SIZE_PX = 480
CALM_TO_LATE = LinearSegmentedColormap.from_list("wait", ["#2a9d8f", "#e9c46a", "#d62828"])


def draw_road(network: Network, road: RoadMeasurement) -> np.ndarray:
    """[480, 480, 3] uint8. Bars stand in the order of phases 1..8 from left to right."""
    place = np.asarray(network.position, float)
    link = _spacing(place)
    figure = Figure(figsize=(SIZE_PX / 100, SIZE_PX / 100), dpi=100, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    colour = CALM_TO_LATE(np.clip(np.asarray(road.wait) / WAIT_LIMIT_S, 0, 1))
    queue = np.asarray(road.queue)
    offset = (np.arange(queue.shape[1]) - (queue.shape[1] - 1) / 2) * link * 0.08
    for signal, (x, y) in enumerate(place):
        height = np.minimum(queue[signal] / QUEUE_SHOWN, 1.0) * link * 0.8
        axes.bar(x + offset, height, width=link * 0.07, bottom=y, color=colour[signal])
    axes.scatter(*place.T, s=12, color="black", zorder=3)
    for signal, ways in enumerate(np.asarray(network.neighbours)):
        for other in ways[ways > signal]:
            axes.plot(*place[[signal, other]].T, color="0.8", linewidth=1, zorder=0)
    axes.set(
        xticks=[], yticks=[], aspect="equal", title=f"{queue.sum():.0f} halting, {np.max(road.wait):.0f} s longest"
    )
    (left, bottom), (right, top) = place.min(axis=0) - 0.5 * link, place.max(axis=0) + link
    axes.set(xlim=(left, right), ylim=(bottom, top))
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _spacing(place: np.ndarray) -> float:
    """Distance of the closest two intersections, m."""
    gap = np.linalg.norm(place[:, None] - place[None], axis=-1)
    apart = gap[gap > 0]
    return float(apart.min()) if apart.size else 300.0
