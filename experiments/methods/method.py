"""What the rest of the project knows of a method: one record at the end of its file."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Method(NamedTuple):
    """A forecaster, a detector or a controller: its names and where they are shown."""

    name: str  # on command lines and in rows
    config: Any = None  # settings as published, or a function of the preset's settings
    variants: Mapping[str, Mapping[str, Any]] = {}  # of `name:variant`: what it changes in the settings
    paper_label: Mapping[str, str] = {}  # rows of the paper's tables -> what our rows for them are called
    tables: Mapping[str, tuple[str, ...]] = {}  # of the paper that are run with it -> names to run
    driver: Any = None  # of a controller for which a network is enough: makes what sets its signals
    make: Any = None  # another controller without learning: (name, road, vehicles per hour, folder) -> drives.Method
    needs: str | None = None  # a package that may be missing

    @property
    def names(self) -> tuple[str, ...]:
        """What can be asked for."""
        return (self.name, *(f"{self.name}:{variant}" for variant in self.variants))
