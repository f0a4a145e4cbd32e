"""SUMO's own NEMA controllers, fully actuated with maximum greens of 20 and 45 s; no action steers them."""

from pathlib import Path

from sim.network import Network
from sim.own_programs import NativePrograms, nema_programs


def driver(network: Network, folder: Path) -> NativePrograms:
    """Leaves the signals to SUMO. Args: folder: where its programs are written."""
    return NativePrograms(nema_programs(network, folder))
