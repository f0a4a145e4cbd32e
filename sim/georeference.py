"""Where on Earth the signals of a network stand, if its file says how it was projected."""

import numpy as np
from sumolib.net import Net


def signal_lonlat(net: Net, position: np.ndarray) -> np.ndarray | None:
    """Longitude and latitude of positions in the network, [I, 2] degrees; None without a projection that is known."""
    if not net.hasGeoProj():
        return None
    try:
        lonlat = np.array([net.convertXY2LonLat(float(x), float(y)) for x, y in position])
    except RuntimeError:  # of pyproj, which does not know this projection: SUMO's own "simple" one, for instance
        return None
    return lonlat if np.isfinite(lonlat).all() else None
