"""Programs that SUMO runs itself, as references: its NEMA controllers on our phases, and its actuated programs.

SUMO ignores new maximum greens in this mode, so these programs cannot be steered by an action.
"""

from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from sim.errors import RoadError
from sim.nema import MIN_GREEN, YELLOW, NemaConfig, Plan
from sim.network import Network
from sim.stages import state_string
from stream_jax import store

_RINGS = {"ring1": (1, 2, 3, 4), "ring2": (5, 6, 7, 8)}
_BARRIERS = {"barrierPhases": "4,8", "barrier2Phases": "2,6"}


class NativePrograms:
    """A driver that leaves the signals to the programs that SUMO runs itself."""

    native = True

    def __init__(self, programs: Path | None) -> None:
        self.programs = programs  # an additional file; None: the programs of the network itself

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


def actuated_programs(network: Network, file: Path, yellow_s: int, min_green_s: int, max_green_s: int) -> Path:
    """Writes an additional file with SUMO's actuated program on the green phases of each signal's own program.

    A green lasts until no vehicle has passed its detectors for SUMO's usual gap of 3 s, within the two bounds. Greens
    come in the order of the program with a yellow between them and no all-red.
    """
    programs = [
        _actuated(network.ids[signal], greens, yellow_s, min_green_s, max_green_s)
        for signal, greens in enumerate(network.own_greens)
        if len(greens) > 1
    ]
    store.write_text(file, "<additional>\n" + "\n".join(programs) + "\n</additional>\n")
    return file


def _actuated(name: str, greens: tuple[str, ...], yellow_s: int, min_green_s: int, max_green_s: int) -> str:
    lines = [f'<tlLogic id={quoteattr(name)} type="actuated" programID="stream_jax_actuated" offset="0">']
    for now, following in zip(greens, (*greens[1:], greens[0]), strict=True):
        between = state_string((now, following), 0, 1, YELLOW)
        lines.append(f'<phase duration="{min_green_s}" minDur="{min_green_s}" maxDur="{max_green_s}" state="{now}"/>')
        if "y" in between:
            lines.append(f'<phase duration="{yellow_s}" state="{between}"/>')
    return "\n".join([*lines, "</tlLogic>"])


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
