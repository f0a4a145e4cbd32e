"""PU-GAT+: forecast city traffic, and know how sure you are (Section 4.1)."""
