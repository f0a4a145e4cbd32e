"""Runs, presets, baselines, benchmarks, tables and figures."""
