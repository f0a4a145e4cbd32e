"""STREAM-RL in JAX: forecast (gnn), detect (flows), control (rl), and the statistics they share (conformal)."""
