"""Which driver carries out what a controller tells the signals; one entry for each action space."""

from collections.abc import Callable, Mapping

from sim.lookahead import LookaheadDriver
from sim.nema import NemaController, SignalDriver
from stream_jax.task import GREENS, PRICES

DRIVERS: Mapping[str, Callable[[], SignalDriver | LookaheadDriver]] = {
    PRICES.name: LookaheadDriver,
    GREENS.name: NemaController,
}
