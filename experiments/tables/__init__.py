"""The paper's tables and the project's own, made from results rows."""
