"""The page and the figures of a run."""
