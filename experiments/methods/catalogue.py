"""Every method by name, with its file; a new one is a line here and a file that ends in its record.

Nothing is imported before a record is asked for, so that help texts can name all methods and still be quick.
A file with several records has their names after a colon.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from types import ModuleType

from experiments.methods.method import Method

FORECASTERS = {
    "persistence": "forecasting.persistence",
    "historical_average": "forecasting.historical_average",
    "scaled_profile": "forecasting.scaled_profile",
    "linear_ar": "forecasting.linear_ar",
    "stgcn": "forecasting.stgcn",
    "graph_wavenet": "forecasting.graph_wavenet",
    "agcrn": "forecasting.agcrn",
    "temperature_gat": "forecasting.temperature_gat",
    "staci": "forecasting.staci",
    "ripcn": "forecasting.ripcn",
    "catboost": "forecasting.boosted_trees",
    "stid": "forecasting.stid",
    "cqr": "forecasting.cqr",
    "deep_ensemble": "forecasting.deep_ensemble",
    "pu_gat_ensemble": "forecasting.pu_gat_ensemble",
    "pu_gat_plus": "forecasting.pu_gat_plus",
}
DETECTORS = {
    "isolation_forest": "detection.isolation_forest",
    "omni_anomaly": "detection.omni_anomaly",
    "usad": "detection.usad",
    "pca": "detection.pca",
    "gaussian_fitted": "detection.parametric:GAUSSIAN",
    "student_t_fitted": "detection.parametric:STUDENT_T",
    "flow_quantile": "detection.flow_quantile",
    "flow_clipped": "detection.flow_quantile:CLIPPED",
    "flow_all_leads": "detection.flow_quantile:ALL_LEADS",
}
CONTROLLERS = {
    "default_plan": "control.default_plan",
    "fixed_time": "control.fixed_time",
    "webster": "control.webster",
    "max_pressure": "control.max_pressure",
    "guarded_max_pressure": "control.guarded_max_pressure",
    "splits": "control.splits",
    "static_20_45": "control.static_plan:MIDDLE",
    "static_14_32": "control.static_plan:SHORT",
    "static_30_70": "control.static_plan:LONG",
    "static_20_45_guard": "control.static_plan:GUARDED",
    "static_14_32_guard": "control.static_plan:SHORT_GUARDED",
    "following_plan": "control.following_plan",
    "lookahead": "control.lookahead",
    "sumo_nema": "control.sumo_nema",
}
LEARNERS = {
    "lycon_wrl_plus": "control.lycon_wrl_plus",
    "ppo": "control.ppo",
    "cpo": "control.cpo",
    "sac_lagrangian": "control.sac_lagrangian",
    "la_mbda": "control.la_mbda",
}
OUR_DETECTOR = "detection.crfn_by"  # runs in every detect stage; its names are rules


def module_of(place: str) -> ModuleType:
    """The file of a method."""
    return importlib.import_module(f"experiments.methods.{place.partition(':')[0]}")


def record(place: str) -> Method:
    """What the rest of the project knows of a method."""
    return getattr(module_of(place), place.partition(":")[2] or "METHOD")


def records(methods: Mapping[str, str]) -> dict[str, Method]:
    """The records of one kind, by name."""
    return {name: record(place) for name, place in methods.items()}


def names(methods: Mapping[str, str]) -> tuple[str, ...]:
    """Everything of one kind that can be asked for, variants too."""
    return tuple(name for one in records(methods).values() for name in one.names)


def labels(*places: str) -> dict[str, str]:
    """Rows of the paper's tables -> the names of our rows that answer them."""
    return {label: name for place in places for label, name in record(place).paper_label.items()}


def for_table(methods: Mapping[str, str], table: str | None) -> tuple[str, ...] | None:
    """The methods of one kind that a table of the paper compares, as far as installed; None if it names none."""
    able = [one for one in records(methods).values() if one.needs is None or importlib.util.find_spec(one.needs)]
    return tuple(name for one in able for name in one.tables.get(table, ())) or None
