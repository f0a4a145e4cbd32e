"""Signals that look ahead, as compiled functions that drive SUMO and a compiled road alike."""
