"""The contract between the steps of the job: city specifications, column lists and explicit schemas."""

import dataclasses
import math

from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

EARTH_RADIUS_M = 6_371_008.8  # mean radius, IUGG

# Reader -> cleaning. `trip` and `vehicle` are 64-bit hashes of the source's own identifiers.
# `problem` is null for a good row, else why it cannot be used; `raw` then holds the row as it was read.
RAW_COLUMNS = ("vehicle", "trip", "time_s", "lon", "lat", "problem", "raw")
# Cleaning -> features.
POINT_COLUMNS = ("vehicle", "trip", "time_s", "lon", "lat")
# Features, one row per fix: its place, where it came from (-1: no movement joins it to an earlier fix), how fast.
PRESENCE_COLUMNS = ("vehicle", "step", "place", "origin", "speed_mmps")

FEATURES = ("flow", "speed", "density")
UNITS = {"flow": "vehicles per step", "speed": "m/s", "density": "vehicles"}

PORTO_SCHEMA = StructType(
    [
        StructField(name, StringType())
        for name in (
            "TRIP_ID",
            "CALL_TYPE",
            "ORIGIN_CALL",
            "ORIGIN_STAND",
            "TAXI_ID",
            "TIMESTAMP",
            "DAY_TYPE",
            "MISSING_DATA",
            "POLYLINE",
            "bad",
        )
    ]
)

FOIL_COLUMNS = (
    "medallion",
    "hack_license",
    "vendor_id",
    "rate_code",
    "store_and_fwd_flag",
    "pickup_datetime",
    "dropoff_datetime",
    "passenger_count",
    "trip_time_in_secs",
    "trip_distance",
    "pickup_longitude",
    "pickup_latitude",
    "dropoff_longitude",
    "dropoff_latitude",
)
UBER_COLUMNS = ("Date/Time", "Lat", "Lon", "Base")

TABLE_SCHEMA = StructType(
    [
        StructField("step", LongType()),
        StructField("place", IntegerType()),
        StructField("flow", LongType()),
        StructField("speed_sum", LongType()),
        StructField("movements", LongType()),
        StructField("density", LongType()),
        StructField("points", LongType()),
    ]
)
READING_SCHEMA = StructType(
    [StructField("time_s", LongType()), StructField("place", IntegerType()), StructField("value", DoubleType())]
)


@dataclasses.dataclass(frozen=True)
class Box:
    """A longitude-latitude box in degrees, closed below and open above."""

    lon_min: float
    lat_min: float
    lon_max: float
    lat_max: float

    @property
    def metres_per_lon(self) -> float:
        return math.pi / 180 * EARTH_RADIUS_M * math.cos(math.pi / 180 * (self.lat_min + self.lat_max) / 2)

    @property
    def metres_per_lat(self) -> float:
        return math.pi / 180 * EARTH_RADIUS_M

    @property
    def width_m(self) -> float:
        return (self.lon_max - self.lon_min) * self.metres_per_lon

    @property
    def height_m(self) -> float:
        return (self.lat_max - self.lat_min) * self.metres_per_lat


@dataclasses.dataclass(frozen=True)
class CitySpec:
    """What the job needs to know of a city; `docs/concepts/data.md` explains each number."""

    dataset: str
    source: str  # tdrive | porto | geolife | manhattan | gps | sensors: which reader
    timezone: str
    box: Box | None = None  # None: taken from the data (gps) or from polygons (manhattan)
    square_m: float = 1000.0
    num_cells: int | None = 293  # None: keep every square that has flow
    max_gap_s: int = 900
    max_speed_mps: float = 50.0
    bin_s: int = 900
    window: int = 12  # steps of history a model reads, which sets the smallest gap between parts
    horizon: int = 4

    @property
    def area(self) -> Box:
        """The box, once it is known."""
        if self.box is None:
            raise ValueError(f"the box of {self.dataset} is not known before its data are read")
        return self.box

    @property
    def columns(self) -> int:
        return math.ceil(self.area.width_m / self.square_m)

    @property
    def rows(self) -> int:
        return math.ceil(self.area.height_m / self.square_m)


BEIJING = Box(116.20, 39.75, 116.60, 40.05)

CITIES = {
    "tdrive": CitySpec("tdrive", "tdrive", "Asia/Shanghai", BEIJING),
    "geolife": CitySpec("geolife", "geolife", "Asia/Shanghai", BEIJING, num_cells=156, max_gap_s=120),
    "porto": CitySpec(
        "porto", "porto", "Europe/Lisbon", Box(-8.70, 41.10, -8.53, 41.22), square_m=500.0, num_cells=441, max_gap_s=60
    ),
    "manhattan": CitySpec("manhattan", "manhattan", "America/New_York", num_cells=263),
    "synthetic": CitySpec("synthetic", "tdrive", "Etc/GMT-1", Box(10.0, 50.0, 10.13, 50.09), num_cells=None),
    "gps": CitySpec("gps", "gps", "UTC", num_cells=None),
    "sensors": CitySpec("sensors", "sensors", "UTC", num_cells=None),
}
