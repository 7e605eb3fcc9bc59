"""The three passes as JAX primitives, and what JAX may do to them."""
