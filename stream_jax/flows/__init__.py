"""CRFN-BY: find anomalies at a controlled false-discovery rate (Section 4.2)."""
