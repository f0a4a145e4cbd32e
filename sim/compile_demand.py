"""The demand of `sim/demand.py` as arrays, so that a compiled road can draw its own hours."""

import numpy as np

from sim.compile_road import CLOSURES, Compiled, compile_road
from sim.demand import DemandConfig, goal_chances, origin_shares
from sim.network import Network
from sim.routes import Roads, edges_of, find_paths
from sim.stages import Programs
from stream_jax.road.trips import Demand
from stream_jax.types import on_host

MARGIN = 6.0  # standard deviations of the number of trips for which there is room


def compile_with_demand(
    network: Network,
    roads: Roads,
    rates: np.ndarray,
    flow: np.ndarray,
    cfg: DemandConfig,
    seed: int = 0,
    programs: Programs = "nema",
) -> tuple[Compiled, Demand]:
    """A road for all routes that demand of this kind can take, and the demand itself.

    Args:
        rates: [1 + T, I] trips per second, first of the warm-up, then of each step of the recording.
        flow: [1 + T, I] what attracts goals.
        seed: of the drivers' views of travel times, which choose their routes.
    """
    paths = find_paths(roads, np.random.default_rng(seed), cfg.perceptions)
    route = {
        (origin, goal, view): " ".join(roads.ids[edge] for edge in edges_of(roads, paths, view, origin, goal))
        for origin, goal in zip(*np.nonzero(paths.reachable), strict=True)
        for view in range(cfg.perceptions)
    }
    compiled = compile_road(network, route.values(), programs)
    hop = np.full((*paths.reachable.shape, cfg.perceptions), -1, np.int32)
    for place, edges in route.items():
        hop[place] = compiled.hops[edges]
    share = origin_shares(
        roads.origin_signal, roads.origin_is_entry, np.asarray(paths.reachable.any(axis=1)), cfg, rates.shape[1]
    )
    start_s = np.concatenate([[0.0], cfg.warmup_s + cfg.bin_s * np.arange(len(rates) - 1)])
    end_s = np.minimum(np.append(start_s[1:], np.inf), cfg.warmup_s + cfg.duration_s)
    rate = rates[:, roads.origin_signal] * share  # [T, roads' origins]
    goal = np.stack([goal_chances(network, roads, paths.reachable, piece, cfg) for piece in flow])

    # Rows in the order of the compiled road's origins, of which some lead to no signal.
    row = {roads.ids[edge]: k for k, edge in enumerate(roads.origins)}
    order = [row[edge] for edge in compiled.origins]
    mean = float((rate[:, order] * (end_s - start_s)[:, None]).sum())
    most = int(mean + MARGIN * np.sqrt(mean)) + 1
    nothing = np.zeros(CLOSURES, np.float32)
    return compiled, Demand(
        on_host(rate[:, order].astype(np.float32)),
        on_host(goal[:, order].astype(np.float32)),
        on_host(start_s.astype(np.float32)),
        on_host(end_s.astype(np.float32)),
        on_host(hop[order]),
        on_host(np.zeros(most, np.int32)),
        on_host(np.full(CLOSURES, compiled.road.lanes, np.int32)),
        on_host(nothing),
        on_host(nothing),
    )
