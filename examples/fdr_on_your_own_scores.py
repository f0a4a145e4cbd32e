"""Chooses which of many anomaly scores to report, so that few of the reported ones are false.

  python examples/fdr_on_your_own_scores.py

Here 200 simulated sensors give a score each in 2,000 rounds, and 10 of them are broken in every round. Replace
`your_scores` by scores of your own; larger must mean more anomalous.
"""

import jax
import jax.numpy as jnp
from jax import Array

from stream_jax.conformal.fdr import bh_reject, by_reject, check_calibration_size
from stream_jax.conformal.fdr_metrics import count_steps, detection_metrics
from stream_jax.conformal.p_values import conformal_p_values

SENSORS, BROKEN, ROUNDS = 200, 10, 2000
LEVEL = 0.05  # on average at most 5 % of the reported sensors are false
NORMAL = 400_000  # scores of normal sensors, collected beforehand


def your_scores(key: Array) -> tuple[Array, Array]:
    """Normal scores [n], and new scores [rounds, sensors] of which the first ten of each round are broken sensors."""
    normal_key, new_key = jax.random.split(key)
    normal = jnp.abs(jax.random.normal(normal_key, (NORMAL,)))
    new = jax.random.normal(new_key, (ROUNDS, SENSORS))
    return normal, jnp.abs(new.at[:, :BROKEN].add(5.0))


def main() -> None:
    """Turns scores into p-values by their rank among normal scores, and compares two procedures and a threshold."""
    normal, new = your_scores(jax.random.key(0))
    is_broken = jnp.broadcast_to(jnp.arange(SENSORS) < BROKEN, new.shape)

    check_calibration_size(NORMAL, SENSORS, LEVEL)  # warns if nothing could ever be reported
    p_values = conformal_p_values(normal, new)  # [rounds, sensors]
    reported = {
        "every p-value below 5 %": p_values <= LEVEL,
        "Benjamini-Hochberg": jax.vmap(lambda row: bh_reject(row, LEVEL))(p_values),
        "Benjamini-Yekutieli": jax.vmap(lambda row: by_reject(row, LEVEL))(p_values),
    }
    print(f"{'':24s} false among reported   broken ones found")
    for name, chosen in reported.items():
        found = detection_metrics(count_steps(chosen, is_broken))
        print(f"{name:24s} {float(found.fdr_step):19.1%} {float(found.recall):19.1%}")


if __name__ == "__main__":
    main()
