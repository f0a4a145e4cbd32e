"""PU-GAT+ and its ablations; the settings are the preset's, with what a variant changes of them."""

from experiments.methods.method import Method
from stream_jax.gnn import pu_gat_plus
from stream_jax.gnn.attention import AttentionConfig

NAME = "pu_gat_plus"
VARIANTS = {
    "unconstrained": {"attention": AttentionConfig(mode="unconstrained")},
    "gamma_zero": {"attention": AttentionConfig(mode="none")},
    "temperature": {"attention": AttentionConfig(mode="temperature")},
    "single_stream": {"dual_stream": False},
    "nll": {"loss": "nll"},
    "mse": {"loss": "mse"},
    "beta_nll": {"loss": "beta_nll"},
    "seasonal_trend": {"trend": "seasonal"},
    "no_linear": {"linear": False},
}
ABLATION = ("gamma_zero", "unconstrained", "temperature", "single_stream", "mse")
WITH_IT_ALONE = ("aci", "clusters", "delta", "trimming", "p_values", "dependence", "events")

fit_with_history, predict = pu_gat_plus.fit_with_history, pu_gat_plus.predict


METHOD = Method(
    NAME,
    variants=VARIANTS,
    paper_label={
        "PU-GAT+": NAME,
        "STREAM-RL": NAME,
        "Full STREAM-RL": NAME,
        "w/o pairwise (gamma = 0)": f"{NAME}:gamma_zero",
        "Unconstrained gamma": f"{NAME}:unconstrained",
        "Temperature scaling": f"{NAME}:temperature",
        "w/o dual stream": f"{NAME}:single_stream",
        "w/o heteroscedastic NLL": f"{NAME}:mse",
    },
    tables=dict.fromkeys((*WITH_IT_ALONE, "forecasting", "cross_dataset", "datasets"), (NAME,))
    | {"gamma": (NAME, f"{NAME}:unconstrained"), "ablation": (NAME, *(f"{NAME}:{one}" for one in ABLATION))},
)
