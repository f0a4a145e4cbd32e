"""Reference forecasters, conformalised exactly as PU-GAT+ is."""
