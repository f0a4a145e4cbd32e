"""LyCon-WRL+ and its ablations; every one of them is trained anew with the preset's budget."""

from experiments.methods.method import Method
from stream_jax.rl.safety import SafetyConfig
from stream_jax.rl.state import StateConfig

NAME = "lycon_wrl_plus"
# Changes of the agent's settings, of its reward's, or of how the cells' uncertainties add up at an intersection, which
# otherwise is the kernel exp(-distance / length).
VARIANTS = {
    "no_lyapunov": {"safety": SafetyConfig(mode="none")},
    "soft_0.1": {"safety": SafetyConfig(mode="soft"), "reward": {"soft_lyapunov": 0.1}},
    "soft_1": {"safety": SafetyConfig(mode="soft"), "reward": {"soft_lyapunov": 1.0}},
    "no_uncertainty": {"state": StateConfig(use_uncertainty=False), "reward": {"uncertainty": 0.0}},
    "no_anomaly": {"reward": {"anomaly": 0.0}},  # p-values and flags stay in the state, as in the paper
    "diagonal": {"covariance": "diagonal"},
    "learned": {"covariance": "empirical"},
}
LABELS = {
    "LyCon-WRL+": "",
    "STREAM-RL": "",
    "Full STREAM-RL": "",
    "w/o Lyapunov": ":no_lyapunov",
    "w/o uncertainty in state": ":no_uncertainty",
    "w/o anomaly reward": ":no_anomaly",
    "No Lyapunov": ":no_lyapunov",
    "Soft, 0.1": ":soft_0.1",
    "Soft, 1": ":soft_1",
    "Hard": "",
    "Diagonal": ":diagonal",
    "Distance kernel": "",
    "Learned": ":learned",
}
TABLES = {
    "rl": ("",),
    "covariance": (":diagonal", "", ":learned"),
    "lyapunov": ("", ":no_lyapunov", ":soft_0.1", ":soft_1"),
    "ablation": ("", ":no_lyapunov", ":no_uncertainty", ":no_anomaly"),
    "eps_floor": ("",),
}


METHOD = Method(
    NAME,
    variants=VARIANTS,
    paper_label={label: NAME + variant for label, variant in LABELS.items()},
    tables={table: tuple(NAME + variant for variant in variants) for table, variants in TABLES.items()},
)
