"""CRFN-BY as the tables name it: which row of the paper each of its rules answers."""

from experiments.methods.method import Method

METHOD = Method(
    "crfn_by",
    paper_label={
        "CRFN + BH": "full+bh",
        "CRFN-BY": "full+by",
        "STREAM-RL": "full+by",
        "Full STREAM-RL": "full+by",
        "BY -> BH": "full+bh",
        "Parametric p-values": "gaussian+by",
        "w/o trimmed calibration": "full+by",  # ours never trims by score
        "Parametric Gaussian": "gaussian+by",
        "Parametric Student-t": "student_t+by",
        "Conformalized": "full+by",
    },
)
