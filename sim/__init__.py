"""The road: SUMO networks, signal controllers, demand driven by the city, and sessions that run them.

Importing it tells Gymnasium the environment `stream_jax/Signals-v0`.
"""

from sim.registration import register

register()
