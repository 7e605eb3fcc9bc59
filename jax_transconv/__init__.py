"""Transposed convolution for JAX: PyTorch's semantics, native kernels."""

from jax_transconv.api import (
    Explanation,
    conv_transpose1d,
    conv_transpose2d,
    explain,
)
from jax_transconv.export import export_checks
from jax_transconv.programs.doctor import doctor
from jax_transconv.programs.rewrite import accelerate

__all__ = [
    "Explanation",
    "__version__",
    "accelerate",
    "conv_transpose1d",
    "conv_transpose2d",
    "doctor",
    "explain",
    "export_checks",
]

__version__ = "0.1.0"
