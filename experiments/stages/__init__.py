"""The stages of a run, each reading what the one before it wrote."""
