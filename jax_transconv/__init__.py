"""Transposed convolution for JAX: PyTorch's semantics, native kernels."""

from jax_transconv.api import Explanation, conv_transpose2d, explain

__all__ = ["Explanation", "__version__", "conv_transpose2d", "explain"]

__version__ = "0.1.0"
