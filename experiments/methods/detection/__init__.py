"""Detectors that CRFN-BY is compared with: `fit` on the rows that the flow learns from, `scores` of every cell-step."""
