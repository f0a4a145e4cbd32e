"""Finds SUMO's programs: in the eclipse-sumo package, under SUMO_HOME or on the path."""

import importlib.util
import os
import shutil
from pathlib import Path

from sim.errors import RoadError


def find_binary(name: str) -> str:
    """The full path of `sumo`, `sumo-gui` or `netgenerate`, of the Python packages' own release where it is there."""
    package = importlib.util.find_spec("sumo")
    places = [Path(place) / "bin" for place in (package.submodule_search_locations or [] if package else [])]
    if os.environ.get("SUMO_HOME"):
        places.append(Path(os.environ["SUMO_HOME"]) / "bin")
    found = shutil.which(name, path=os.pathsep.join(map(str, places))) or shutil.which(name)
    if found is None:
        raise RoadError(f"SUMO's program {name} was not found: install the package eclipse-sumo or set SUMO_HOME")
    return found
