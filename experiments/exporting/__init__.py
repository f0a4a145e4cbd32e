"""A run's artefacts as tables and maps for other programs: UTC times, names, degrees, minutes, seconds and units."""
