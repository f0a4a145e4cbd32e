"""Five PU-GAT+ that differ by their start only, as one mixture; with the settings of the preset."""

from experiments.methods.forecasting import deep_ensemble
from experiments.methods.method import Method
from stream_jax.gnn import pu_gat_plus

fit, fit_with_history, predict = deep_ensemble.ensemble_of(pu_gat_plus, members=5)


METHOD = Method("pu_gat_ensemble")
