"""LyCon-WRL+: act safely inside a learned world."""
