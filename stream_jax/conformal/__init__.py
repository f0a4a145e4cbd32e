"""Conformal statistics that the forecaster and the detector share: arrays in, arrays out, no networks."""
