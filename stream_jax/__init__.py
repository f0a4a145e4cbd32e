"""Forecast city traffic, detect anomalies and control signals safely, in JAX.

The parts are `gnn` (forecast), `flows` (detect), `rl` (control) and `conformal` (the statistics that they share).
"""

__version__ = "0.2.0"
