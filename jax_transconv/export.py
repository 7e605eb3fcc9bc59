"""What `jax.export` needs to know of our custom calls."""

from __future__ import annotations

from jax import export

from jax_transconv.ffi.targets import TARGETS

__all__ = ["export_checks"]


def export_checks() -> list[export.DisabledSafetyCheck]:
    """Lets `jax.export` serialise our custom calls, whose meaning is stable.

    A name carries its version, which changes with the meaning of the call. Whoever
    loads such a program imports `jax_transconv` first; without, running it fails with
    the name of the call. A program over several devices is exported from inside
    `jax.shard_map`: JAX can't serialise what its own partitioner asks for.

    Returns:
        The checks to disable, for ``jax.export.export(..., disabled_checks=...)``.

    Example:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> from jax_transconv import conv_transpose2d, export_checks
        >>> x = jax.ShapeDtypeStruct((1, 2, 4, 4), jnp.float32)
        >>> w = jax.ShapeDtypeStruct((2, 3, 2, 2), jnp.float32)
        >>> f = jax.jit(lambda x, w: conv_transpose2d(x, w, stride=2))
        >>> exported = jax.export.export(f, disabled_checks=export_checks())(x, w)
        >>> exported.out_avals[0].shape
        (1, 3, 8, 8)
    """
    return [export.DisabledSafetyCheck.custom_call(name) for name in TARGETS.values()]
