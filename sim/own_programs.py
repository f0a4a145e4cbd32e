"""SUMO's own actuated NEMA controllers on our phases, as a reference that our controller must not lose to.

SUMO ignores new maximum greens in this mode, so these programs cannot be steered by an action.
"""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from sim.errors import RoadError
from sim.nema import MIN_GREEN, NemaConfig, Plan
from sim.network import Network
from stream_jax import store

_RINGS = {"ring1": (1, 2, 3, 4), "ring2": (5, 6, 7, 8)}
_BARRIERS = {"barrierPhases": "4,8", "barrier2Phases": "2,6"}


class NativeNema:
    """A driver that leaves the signals to the programs that SUMO runs itself."""

    native = True

    def __init__(self, programs: Path) -> None:
        self.programs = programs  # written by nema_programs

    def reset(self, network: Network) -> None:
        """Nothing to prepare: the programs are loaded with the network."""

    def update(self, detectors: object, plan: Plan) -> np.ndarray:
        """Never asked: sessions set no signals for a native driver."""
        raise RoadError("SUMO runs these signals itself; they take no lights from outside")


def nema_programs(
    network: Network, folder: Path, left_s: float = 20.0, through_s: float = 45.0, cfg: NemaConfig | None = None
) -> Path:
    """Writes an additional file with a free (fully actuated) NEMA program for every recognised intersection."""
    cfg = cfg or NemaConfig()
    programs = [
        _program(network, signal, (left_s, through_s), cfg) for signal in np.flatnonzero(network.is_nema).tolist()
    ]
    path = Path(folder) / f"{Path(network.net_file).stem}-nema-{left_s:g}-{through_s:g}.add.xml"
    store.write_text(path, "<additional>\n" + "\n".join(programs) + "\n</additional>\n")
    return path


def _program(network: Network, signal: int, max_green: tuple[float, float], cfg: NemaConfig) -> str:
    states = network.green_states[signal]
    rings = {
        name: ",".join(str(phase) if states[phase - 1] else "0" for phase in phases) for name, phases in _RINGS.items()
    }
    params = {
        **rings,
        **_BARRIERS,
        "minRecall": "",
        "maxRecall": "",
        "whetherOutputState": "false",
        "fixForceOff": "false",
    }
    lines = [f'<tlLogic id={quoteattr(network.ids[signal])} type="NEMA" programID="nema" offset="0">']
    lines += [f'<param key="{key}" value="{value}"/>' for key, value in params.items()]
    for index, state in enumerate(states):
        if state:
            longest = max_green[index % 2]
            lines.append(
                f'<phase duration="{longest}" minDur="{MIN_GREEN[index]}" maxDur="{longest}" vehext="{cfg.passage_s}" '
                f'yellow="{cfg.yellow_s}" red="{cfg.all_red_s}" name="{index + 1}" state="{state}"/>'
            )
    return "\n".join([*lines, "</tlLogic>"])
