"""Fits compiled roads to SUMO, and judges them against it."""
