"""SUMO's own NEMA controllers, fully actuated with maximum greens of 20 and 45 s; no action steers them."""

from pathlib import Path

from sim.network import Network
from sim.own_programs import NativeNema, nema_programs


def driver(network: Network, folder: Path) -> NativeNema:
    """Leaves the signals to SUMO. Args: folder: where its programs are written."""
    return NativeNema(nema_programs(network, folder))
