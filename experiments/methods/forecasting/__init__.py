"""Reference and rival forecasters, conformalised exactly as PU-GAT+ is."""
