"""Transposed convolution for JAX: PyTorch's semantics, native kernels."""

from jax_transconv.api import Explanation, conv_transpose2d, explain
from jax_transconv.export import export_checks

__all__ = [
    "Explanation",
    "__version__",
    "conv_transpose2d",
    "explain",
    "export_checks",
]

__version__ = "0.1.0"
