"""Claims about confidence-monotonic attention."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stream_jax.gnn.attention import (
    AttentionConfig,
    PUGATLayer,
    attend_padded,
    attend_segments,
    neighbour_table,
    pairwise_logits,
)
from stream_jax.types import RoadGraph

MODES = ("pairwise", "none", "unconstrained", "temperature")


def graph_of(edges: list[tuple[int, int]], num_nodes: int) -> RoadGraph:
    """Edges (sender, receiver), self-loops added, sorted by receiver."""
    pairs = sorted({*edges, *((i, i) for i in range(num_nodes))}, key=lambda edge: (edge[1], edge[0]))
    senders, receivers = np.array(pairs, np.int32).T
    position = jnp.zeros((num_nodes, 2))
    return RoadGraph(jnp.array(senders), jnp.array(receivers), jnp.zeros((len(pairs), 3)), position)


TRIANGLE = neighbour_table(graph_of([(i, j) for i in range(3) for j in range(3)], 3))
# Degrees 1 to 4 and one-way streets, so that padding and the transposed table both matter.
IRREGULAR = graph_of([(0, 1), (2, 1), (3, 1), (1, 2), (0, 4), (4, 0), (3, 4)], 6)


def weight_matrix(attend, receiver, sender, sigma, gamma, delta, cfg=AttentionConfig()) -> jax.Array:  # noqa: B008
    """alpha[i, j] on the triangle: messages are unit vectors, so the pooled message is the row of weights."""
    scores = (receiver[:, None], sender[:, None], sigma, jnp.atleast_1d(gamma), jnp.atleast_1d(delta))
    return attend(jnp.eye(3)[:, None], *scores, TRIANGLE, cfg)[:, 0]


@pytest.fixture(params=[attend_padded, attend_segments], ids=["padded", "segments"])
def attend(request):
    return request.param


RECEIVER, SENDER = jnp.array([0.3, -0.2, 0.5]), jnp.array([-0.4, 0.1, 0.7])
SIGMA, GAMMA, DELTA = jnp.array([1.0, 0.6, 1.7]), 0.8, 0.3


def test_derivatives_of_attention_in_sigma_follow_the_softmax(attend):
    alpha = weight_matrix(attend, RECEIVER, SENDER, SIGMA, GAMMA, DELTA)
    slope = jax.jacrev(lambda sigma: weight_matrix(attend, RECEIVER, SENDER, sigma, GAMMA, DELTA))(SIGMA)
    i, j, k = 0, 1, 2
    np.testing.assert_allclose(slope[i, j, j], -GAMMA * alpha[i, j] * (1 - alpha[i, j]), rtol=1e-5)
    np.testing.assert_allclose(slope[i, j, k], GAMMA * alpha[i, j] * alpha[i, k], rtol=1e-5)
    # Through the self-loop alone: the receiver's own sigma pushes weight to the neighbours.
    np.testing.assert_allclose(slope[i, j, i], GAMMA * alpha[i, j] * alpha[i, i], rtol=1e-5)


def test_a_constant_added_to_every_sigma_leaves_attention_unchanged(attend):
    before = weight_matrix(attend, RECEIVER, SENDER, SIGMA, GAMMA, DELTA)
    after = weight_matrix(attend, RECEIVER, SENDER, SIGMA + 5.0, GAMMA, DELTA)
    chex.assert_trees_all_close(before, after, atol=1e-6)


def test_attention_to_a_more_confident_neighbour_can_fall_as_gamma_grows(attend):
    # sigma self/j/k = 1.0/0.9/0.1 and e = 0. gamma 0: 1/3. gamma 0.69: e^-0.621 / (e^-0.69 + e^-0.621 + e^-0.069)
    # = 0.5374 / 1.9723 = 0.272, although sigma_j < sigma_i.
    sigma, zero = jnp.array([1.0, 0.9, 0.1]), jnp.zeros(3)
    np.testing.assert_allclose(weight_matrix(attend, zero, zero, sigma, 0.0, 0.0)[0, 1], 0.333, atol=5e-4)
    np.testing.assert_allclose(weight_matrix(attend, zero, zero, sigma, 0.69, 0.0)[0, 1], 0.272, atol=5e-4)


def test_ratio_of_two_neighbours_compares_their_sigmas_and_forgets_the_receivers(attend):
    base = jax.nn.leaky_relu(RECEIVER[:, None] + SENDER[None], 0.2)
    alpha = weight_matrix(attend, RECEIVER, SENDER, SIGMA, GAMMA, DELTA)
    expected = jnp.exp(base[0, 1] - base[0, 2] + GAMMA * (SIGMA[2] - SIGMA[1]))
    np.testing.assert_allclose(alpha[0, 1] / alpha[0, 2], expected, rtol=1e-5)
    moved = weight_matrix(attend, RECEIVER, SENDER, SIGMA.at[0].add(2.0), GAMMA, DELTA)
    np.testing.assert_allclose(moved[0, 1] / moved[0, 2], expected, rtol=1e-5)


def test_ratio_to_the_self_loop_holds_the_receivers_sigma_and_delta(attend):
    base = jax.nn.leaky_relu(RECEIVER[:, None] + SENDER[None], 0.2)
    alpha = weight_matrix(attend, RECEIVER, SENDER, SIGMA, GAMMA, DELTA)
    expected = jnp.exp(base[0, 1] - base[0, 0] - DELTA + GAMMA * (SIGMA[0] - SIGMA[1]))
    np.testing.assert_allclose(alpha[0, 1] / alpha[0, 0], expected, rtol=1e-5)


def test_temperature_ratio_ignores_neighbours_but_not_the_receiver(attend):
    cfg = AttentionConfig(mode="temperature")
    base = jax.nn.leaky_relu(RECEIVER[:, None] + SENDER[None], 0.2)

    def ratio(sigma):
        alpha = weight_matrix(attend, RECEIVER, SENDER, sigma, GAMMA, DELTA, cfg)
        return alpha[0, 1] / alpha[0, 2]

    np.testing.assert_allclose(ratio(SIGMA), jnp.exp((base[0, 1] - base[0, 2]) / (1 + SIGMA[0])), rtol=1e-5)
    np.testing.assert_allclose(ratio(SIGMA.at[1].add(3.0)), ratio(SIGMA), rtol=1e-6)
    other = SIGMA.at[0].set(4.0)
    np.testing.assert_allclose(ratio(other), jnp.exp((base[0, 1] - base[0, 2]) / 5.0), rtol=1e-5)


def test_weights_sum_to_one_and_an_isolated_node_hears_itself():
    table = neighbour_table(IRREGULAR)
    scores = jax.random.normal(jax.random.key(0), (6, 1))
    pooled = attend_padded(
        jnp.eye(6)[:, None], scores, scores, jnp.ones(6), jnp.ones(1), jnp.zeros(1), table, AttentionConfig()
    )
    chex.assert_trees_all_close(pooled[:, 0].sum(-1), jnp.ones(6), atol=1e-6)
    chex.assert_trees_all_close(pooled[5, 0], jnp.eye(6)[5], atol=1e-6)


def layer(mode="pairwise", average=False, **options) -> PUGATLayer:
    return PUGATLayer(WIDTH, 4, AttentionConfig(mode=mode, **options), average)


def run_layer(module, params, nodes, sigma, table=None):
    return jax.jit(module.apply)(params, nodes, sigma, neighbour_table(IRREGULAR) if table is None else table)


WIDTH = 16
NODES = jax.random.normal(jax.random.key(1), (6, 2, WIDTH))
NODE_SIGMA = jax.random.uniform(jax.random.key(2), (6, 2), minval=0.2, maxval=2.0)


def start(module):
    return jax.jit(module.init)(jax.random.key(3), NODES, NODE_SIGMA, neighbour_table(IRREGULAR))


@pytest.mark.parametrize(("mode", "average"), [*((mode, False) for mode in MODES), ("pairwise", True)])
def test_padded_gather_equals_segment_sums_in_value_and_gradient(mode, average):
    fast = layer(mode, average)
    slow = layer(mode, average, reference=True)
    params = start(fast)

    def objective(module):
        def call(params, nodes, sigma):
            new_nodes, new_sigma = module.apply(params, nodes, sigma, neighbour_table(IRREGULAR))
            return (new_nodes**3).sum() / 100.0 + (new_sigma**2).sum()

        return jax.value_and_grad(call, (0, 1, 2))

    compiled = jax.jit(objective(fast))(params, NODES, NODE_SIGMA)
    # Sums in another order: a few float32 roundings of terms up to about 10.
    chex.assert_trees_all_close(compiled, jax.jit(objective(slow))(params, NODES, NODE_SIGMA), rtol=2e-4, atol=2e-4)


def test_compiled_and_plain_layers_agree():
    module = layer()
    params = start(module)
    plain = module.apply(params, NODES, NODE_SIGMA, neighbour_table(IRREGULAR))
    chex.assert_trees_all_close(run_layer(module, params, NODES, NODE_SIGMA), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("average", [False, True])
def test_every_layer_is_as_wide_as_the_hidden_size_and_sigma_is_positive(average):
    module = PUGATLayer(128, 4, AttentionConfig(), average)
    nodes = jnp.ones((6, 2, 128))
    table = neighbour_table(IRREGULAR)
    (nodes, sigma), _ = jax.jit(module.init_with_output)(jax.random.key(0), nodes, NODE_SIGMA, table)
    chex.assert_shape(nodes, (6, 2, 128))
    chex.assert_shape(sigma, (6, 2))
    assert bool((sigma > 0).all())


def test_constant_sigma_gives_plain_graph_attention():
    pairwise, plain = layer("pairwise"), layer("none")
    params = start(pairwise)
    stripped = {"params": {name: leaf for name, leaf in params["params"].items() if name not in ("gamma", "delta")}}
    with_term = run_layer(pairwise, params, NODES, jnp.full((6, 2), 0.7))[0]
    chex.assert_trees_all_close(with_term, run_layer(plain, stripped, NODES, NODE_SIGMA)[0], atol=1e-5)


def test_gamma_starts_at_log_two_and_delta_has_a_gradient():
    module = layer()
    params = start(module)
    np.testing.assert_allclose(jax.nn.softplus(params["params"]["gamma"]), 0.6931, atol=1e-4)
    grads = jax.grad(lambda p: (run_layer(module, p, NODES, NODE_SIGMA)[0] ** 3).sum())(params)["params"]
    assert float(jnp.abs(grads["delta"]).min()) > 1e-4
    assert float(jnp.abs(grads["gamma"]).min()) > 1e-4


def test_a_fixed_self_bias_is_not_a_parameter_and_moves_weight_to_the_node_itself():
    assert "delta" not in start(layer(self_bias=1.0))["params"]
    base = jnp.zeros(2)
    is_self = jnp.array([True, False])
    logits = pairwise_logits(base, 0.0, jnp.zeros(2), is_self, 0.0, 1.0)
    np.testing.assert_allclose(jax.nn.softmax(logits)[0], np.e / (np.e + 1), rtol=1e-6)


def test_renumbering_the_nodes_renumbers_the_outputs():
    order = np.array([3, 0, 5, 1, 4, 2])  # new node n is old node order[n]
    new_of_old = np.argsort(order)
    edges = [
        (int(new_of_old[s]), int(new_of_old[r])) for s, r in zip(IRREGULAR.senders, IRREGULAR.receivers, strict=True)
    ]
    module = layer()
    params = start(module)
    nodes, sigma = run_layer(module, params, NODES, NODE_SIGMA)
    table = neighbour_table(graph_of(edges, 6))
    moved_nodes, moved_sigma = run_layer(module, params, NODES[order], NODE_SIGMA[order], table)
    chex.assert_trees_all_close((moved_nodes, moved_sigma), (nodes[order], sigma[order]), atol=1e-5)


def test_a_graph_without_self_loops_is_refused():
    graph = graph_of([(0, 1)], 2)
    bare = graph._replace(senders=jnp.array([0, 1]), receivers=jnp.array([0, 0]))
    with pytest.raises(ValueError, match="self-loop"):
        neighbour_table(bare)
