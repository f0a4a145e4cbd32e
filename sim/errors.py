"""The one error of the road: a network, demand or simulator that cannot be used, said in one sentence."""


class RoadError(ValueError):
    """The road cannot be simulated as asked; the message says what is wrong and what to do."""
