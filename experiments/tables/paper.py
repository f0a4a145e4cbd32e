"""The numbers that the paper's eighteen tables report, each under its LaTeX label; shares and percentages as fractions.

They are kept for comparison, never as targets: `doubts` names those that cannot all be true, and why.
"""

from typing import NamedTuple


class Doubt(NamedTuple):
    """Cells that contradict arithmetic, a theorem or each other."""

    columns: tuple[str, ...]
    rows: tuple[str, ...]  # all rows when empty
    reason: str


class PaperTable(NamedTuple):
    """One table as printed; a cell is a number, (number, spread), a word, or None where nothing is printed."""

    label: str
    title: str
    columns: tuple[str, ...]  # the first says what the rows are
    rows: dict[str, tuple]  # one cell for each further column
    doubts: tuple[Doubt, ...] = ()


TABLES = {
    "forecasting": PaperTable(
        "tab:forecast",
        "Forecasting T-Drive one hour ahead; target coverage 90 %",
        ("method", "NRMSE", "MAE", "coverage", "RIW", "efficiency"),
        {
            "STGCN + CP": (0.312, 1842, 0.904, 0.58, 1.56),
            "Graph WaveNet + CP": (0.298, 1756, 0.908, 0.54, 1.68),
            "AGCRN + CP": (0.287, 1698, 0.912, 0.51, 1.79),
            "Temp-scaled GAT": (0.283, 1674, 0.906, 0.50, 1.81),
            "STACI": (0.274, 1623, 0.906, 0.48, 1.89),
            "RIPCN": (0.268, 1587, 0.898, 0.52, 1.73),
            "CatBoost + CP": (0.272, 1612, 0.901, 0.49, 1.84),
            "PU-GAT+": (0.254, 1498, 0.914, 0.43, 2.13),
        },
        (
            Doubt(("MAE",), (), "the same multiple of NRMSE in all rows, to 0.6 %"),
            Doubt(("RIW", "efficiency"), (), "90 % coverage at these NRMSE needs about twice the width"),
        ),
    ),
    "cross_dataset": PaperTable(
        "tab:cross_dataset",
        "Coverage divided by relative width, four cities",
        ("method", "T-Drive", "GeoLife", "Porto", "Manhattan"),
        {"STACI": (1.89, 1.76, 1.82, 1.71), "RIPCN": (1.73, 1.68, 1.75, 1.64), "PU-GAT+": (2.13, 1.95, 2.01, 1.89)},
        (Doubt(("T-Drive", "GeoLife", "Porto", "Manhattan"), (), "the widths are too small for NRMSE"),),
    ),
    "anomaly": PaperTable(
        "tab:anomaly",
        "Anomalies injected into 5 % of the cell-steps, and logged incidents; target FDR 5 %",
        ("method", "precision", "recall", "F1", "FDR", "event recall", "event FDR"),
        {
            "Isolation Forest": (0.72, 0.68, 0.70, 0.28, 0.54, None),
            "OmniAnomaly": (0.78, 0.74, 0.76, 0.22, 0.61, None),
            "USAD": (0.81, 0.77, 0.79, 0.19, 0.65, None),
            "Flow (no conf.)": (0.83, 0.79, 0.81, 0.17, 0.68, None),
            "CRFN + BH": (0.85, 0.76, 0.80, 0.072, 0.71, 0.089),
            "CRFN-BY": (0.86, 0.72, 0.78, 0.041, 0.74, 0.038),
        },
        (
            Doubt(("event recall",), ("CRFN + BH", "CRFN-BY"), "BY rejects a subset of BH's rejections"),
            Doubt(("FDR",), ("CRFN + BH", "CRFN-BY"), "not 1 - precision as in the rows above"),
            Doubt(("event FDR",), ("CRFN + BH", "CRFN-BY"), "unlogged events count as false"),
        ),
    ),
    "rl": PaperTable(
        "tab:rl",
        "Signal control (95 % intervals over ten seeds)",
        ("method", "reward", "violations per episode", "safety", "rho_Lyap"),
        {
            "Fixed Timing": ((-45.2, 3.1), (0.42, 0.05), (0.58, 0.04), None),
            "Max-Pressure": ((-12.4, 2.8), (0.28, 0.04), (0.72, 0.05), None),
            "PPO": ((12.8, 2.4), (0.31, 0.04), (0.69, 0.05), None),
            "CPO": ((8.4, 1.8), (0.18, 0.03), (0.82, 0.04), None),
            "SAC-Lagrangian": ((10.1, 2.1), (0.21, 0.03), (0.79, 0.05), None),
            "LAMBDA": ((11.3, 2.0), (0.14, 0.02), (0.86, 0.04), 0.78),
            "LyCon-WRL+": ((15.1, 1.7), (0.05, 0.01), (0.952, 0.021), 0.923),
        },
        (
            Doubt(("violations per episode",), (), "equals 1 - safety in every row: one indicator under two names"),
            Doubt(("rho_Lyap",), (), "the share of falling steps is one half in any stationary regime"),
        ),
    ),
    "latency": PaperTable(
        "tab:runtime",
        "Latency of one step",
        ("component", "ms", "share"),
        {
            "PU-GAT+ forecasting": (8.2, 0.357),
            "Flow scoring": (5.1, 0.222),
            "BY thresholding": (0.3, 0.013),
            "Spatial aggregation": (1.2, 0.052),
            "RL action selection": (8.2, 0.356),
            "Total": (23.0, 1.0),
        },
    ),
    "ablation": PaperTable(
        "tab:ablation",
        "T-Drive with one component removed",
        ("variant", "NRMSE", "coverage", "F1", "FDR", "reward", "safety"),
        {
            "Full STREAM-RL": (0.254, 0.914, 0.78, 0.041, 15.1, 0.952),
            "w/o pairwise (gamma = 0)": (0.278, 0.906, 0.76, 0.044, 13.8, 0.921),
            "Unconstrained gamma": (0.262, 0.909, 0.77, 0.043, 14.2, 0.934),
            "Temperature scaling": (0.283, 0.906, 0.75, 0.045, 13.5, 0.918),
            "w/o dual stream": (0.271, 0.904, 0.76, 0.044, 14.1, 0.930),
            "w/o heteroscedastic NLL": (0.268, 0.872, 0.74, 0.052, 13.6, 0.908),
            "BY -> BH": (0.254, 0.914, 0.80, 0.072, 15.0, 0.948),
            "Parametric p-values": (0.254, 0.914, 0.75, 0.068, 14.6, 0.935),
            "w/o trimmed calibration": (0.256, 0.912, 0.73, 0.058, 14.4, 0.931),
            "w/o Lyapunov": (0.254, 0.914, 0.78, 0.041, 16.2, 0.714),
            "w/o uncertainty in state": (0.254, 0.914, 0.78, 0.041, 11.8, 0.880),
            "w/o anomaly reward": (0.254, 0.914, 0.78, 0.041, 14.3, 0.941),
        },
        (
            Doubt(("coverage",), ("w/o heteroscedastic NLL",), "split conformal covers 90 % whatever sigma is"),
            Doubt(("NRMSE", "coverage"), ("w/o trimmed calibration",), "trimming is downstream of the forecast"),
            Doubt(("FDR",), ("w/o trimmed calibration",), "trimming can only add rejections"),
        ),
    ),
    "covariance": PaperTable(
        "tab:cov_ablation",
        "Covariance of the cells around an intersection",
        ("covariance", "reward", "safety"),
        {"Diagonal": (14.3, 0.931), "Distance kernel": (15.1, 0.952), "Learned": (15.4, 0.958)},
    ),
    "eps_floor": PaperTable(
        "tab:eps_floor",
        "Floor in the relative error of the world model",
        ("floor", "model error", "eps*", "safety"),
        {
            "0": (0.082, 0.089, 0.941),
            "0.05": (0.077, 0.089, 0.948),
            "0.1": (0.074, 0.089, 0.952),
            "0.2": (0.068, 0.089, 0.954),
        },
        (
            Doubt(("safety",), (), "the floor is used after the fact and cannot change a rollout"),
            Doubt(("eps*",), (), "does not follow from the constants that the paper states"),
        ),
    ),
    "aci": PaperTable(
        "tab:aci_sensitivity",
        "Step size of adaptive conformal inference",
        ("step size", "coverage", "RIW", "oscillation"),
        {
            "0.01": (0.901, 0.46, "low"),
            "0.02": (0.904, 0.45, "low"),
            "0.05": (0.914, 0.43, "medium"),
            "0.1": (0.894, 0.44, "high"),
            "0.2": (0.878, 0.48, "very high"),
        },
        (Doubt(("coverage",), ("0.2",), "the long-run identity allows this only over fewer than 250 steps"),),
    ),
    "clusters": PaperTable(
        "tab:cluster_sensitivity",
        "Number of clusters",
        ("clusters", "coverage", "efficiency", "smallest cluster"),
        {
            "5": (0.908, 1.97, 58),
            "10": (0.911, 2.05, 29),
            "15": (0.914, 2.13, 19),
            "20": (0.915, 2.11, 14),
            "30": (0.916, 2.08, 9),
        },
        (Doubt(("smallest cluster",), (), "always floor(293 / K): equal parts, not k-means"),),
    ),
    "trimming": PaperTable(
        "tab:trim_sensitivity",
        "Share of the largest calibration scores that is discarded",
        ("trimmed", "FDR", "event FDR", "recall"),
        {
            "0": (0.058, 0.064, 0.75),
            "0.01": (0.047, 0.045, 0.73),
            "0.02": (0.041, 0.038, 0.72),
            "0.05": (0.039, 0.035, 0.68),
            "0.1": (0.036, 0.032, 0.61),
        },
        (Doubt(("FDR", "event FDR", "recall"), (), "trimming lowers every p-value, so these can only grow"),),
    ),
    "gamma": PaperTable(
        "tab:gamma_values",
        "Learned gamma with and without the softplus",
        ("layer", "constrained", "constrained sd", "unconstrained", "unconstrained sd"),
        {
            "1": (0.82, 0.12, 0.71, 0.34),
            "2": (0.95, 0.08, 0.84, 0.45),
            "3": (1.12, 0.15, -0.23, 0.52),
            "sign flips": (0.0, None, 0.23, None),
        },
    ),
    "delta": PaperTable(
        "tab:delta_sensitivity",
        "Self-loop bias delta on T-Drive",
        ("delta", "NRMSE", "coverage"),
        {"-1": (0.268, 0.908), "0": (0.261, 0.911), "1": (0.259, 0.912), "learned": (0.254, 0.914)},
    ),
    "p_values": PaperTable(
        "tab:pvalue_methods",
        "Where the p-values come from",
        ("p-values", "FDR", "recall"),
        {"Parametric Gaussian": (0.068, 0.76), "Parametric Student-t": (0.061, 0.74), "Conformalized": (0.041, 0.72)},
    ),
    "lyapunov": PaperTable(
        "tab:lyapunov_ablation",
        "The decrease condition as nothing, a penalty, a filter",
        ("configuration", "reward", "safety", "rho_Lyap"),
        {
            "No Lyapunov": (16.2, 0.714, None),
            "Soft, 0.1": (15.8, 0.853, 0.81),
            "Soft, 1": (15.4, 0.912, 0.88),
            "Hard": (15.1, 0.952, 0.923),
        },
        (Doubt(("rho_Lyap",), (), "the share of falling steps is one half in any stationary regime"),),
    ),
    "dependence": PaperTable(
        "tab:dependence",
        "Block bootstrap of the false discovery proportion",
        ("time steps x hops", "rho_block", "FDR of BH", "FDR of BY"),
        {
            "5 x 1": (0.21, 0.058, 0.039),
            "5 x 2": (0.28, 0.064, 0.041),
            "10 x 2": (0.34, 0.072, 0.041),
            "10 x 4": (0.41, 0.081, 0.043),
            "20 x 4": (0.48, 0.093, 0.045),
        },
        (Doubt(("FDR of BH", "FDR of BY"), (), "resampling leaves a mean alone whatever the block"),),
    ),
    "datasets": PaperTable(
        "tab:full_results",
        "Four cities, three tasks",
        ("dataset, method", "NRMSE", "coverage", "RIW", "efficiency", "FDR", "recall", "reward", "safety"),
        {
            "T-Drive, STACI": (0.274, 0.906, 0.48, 1.89, None, None, None, None),
            "T-Drive, LAMBDA": (None, None, None, None, None, None, 11.3, 0.86),
            "T-Drive, STREAM-RL": (0.254, 0.914, 0.43, 2.13, 0.041, 0.72, 15.1, 0.952),
            "GeoLife, STACI": (0.298, 0.904, 0.51, 1.76, None, None, None, None),
            "GeoLife, LAMBDA": (None, None, None, None, None, None, 9.8, 0.83),
            "GeoLife, STREAM-RL": (0.271, 0.911, 0.47, 1.95, 0.044, 0.69, 13.2, 0.931),
            "Porto, STACI": (0.285, 0.905, 0.50, 1.82, None, None, None, None),
            "Porto, LAMBDA": (None, None, None, None, None, None, 10.5, 0.84),
            "Porto, STREAM-RL": (0.262, 0.913, 0.45, 2.01, 0.042, 0.71, 14.1, 0.945),
            "Manhattan, STACI": (0.302, 0.903, 0.53, 1.71, None, None, None, None),
            "Manhattan, LAMBDA": (None, None, None, None, None, None, 8.9, 0.81),
            "Manhattan, STREAM-RL": (0.278, 0.909, 0.48, 1.89, 0.046, 0.68, 12.4, 0.923),
        },
        (Doubt(("RIW", "efficiency"), (), "90 % coverage at these NRMSE needs about twice the width"),),
    ),
    "events": PaperTable(
        "tab:real_events",
        "Logged incidents found, by kind",
        (
            "kind",
            "T-Drive count",
            "T-Drive recall",
            "Porto count",
            "Porto recall",
            "Manhattan count",
            "Manhattan recall",
        ),
        {
            "Accidents": (12, 0.83, 78, 0.76, 45, 0.71),
            "Construction": (5, 0.60, 42, 0.69, 28, 0.64),
            "Weather": (4, 0.75, 24, 0.71, 8, 0.63),
            "Events/parades": (2, 0.50, 12, 0.58, 8, 0.75),
            "Overall": (23, 0.74, 156, 0.72, 89, 0.68),
        },
        (Doubt(("Manhattan recall",), ("Overall",), "the rows above sum to 61 of 89, which is 0.685"),),
    ),
}


# The last stage that has to run before a table can be drawn; control for those not named.
FORECAST_TABLES = ("forecasting", "cross_dataset", "aci", "clusters", "gamma", "delta")
DETECT_TABLES = ("anomaly", "latency", "trimming", "p_values", "dependence", "events")


def value(table: str, row: str, column: str) -> float | str | None:
    """One printed number without its spread."""
    cell = TABLES[table].rows[row][TABLES[table].columns.index(column) - 1]
    return cell[0] if isinstance(cell, tuple) else cell


def doubts(table: str, row: str, column: str) -> list[int]:
    """Which of the table's doubts concern a cell, numbered from 1."""
    found = enumerate(TABLES[table].doubts, start=1)
    return [number for number, doubt in found if column in doubt.columns and (not doubt.rows or row in doubt.rows)]
