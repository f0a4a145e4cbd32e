"""The road: SUMO networks, signal controllers, demand driven by the city, and sessions that run them."""
