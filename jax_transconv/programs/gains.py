"""What XLA does now with a transposed convolution, and what is to be gained here.

Unmeasured, the gain is counted: XLA's general convolution of a stretched input, and the
weight gradient that JAX derives from it, multiply the zeros between its elements as
well. The counts are of the program. A roofline would need the rates of the device and
the bytes that XLA moves, and neither is known without a run: only timing tells.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_transconv.programs.convs import Conv
from jax_transconv.spec import Spec

__all__ = ["Gain", "counted", "measured"]

# The form of each pass in a program that knows nothing of us, as a row or in words.
_NOW = {
    "forward": "xla:dilated",
    "grad_input": "xla:strided",
    "grad_weight": "stretched filter",
}


@dataclasses.dataclass(frozen=True)
class Gain:
    """One pass, now and here.

    Attributes:
        now: what XLA runs.
        products: how many times as many products that has as our row; None where sizes
            are symbolic.
        seconds: of a run now and of one here, if both were timed.
    """

    now: str
    products: float | None
    seconds: tuple[float, float] | None = None

    def __str__(self) -> str:
        if self.seconds is not None:
            now, here = self.seconds
            return (
                f"{now / here:.1f} times as fast: {1e3 * now:.3g} ms, "
                f"{1e3 * here:.3g} ms here"
            )
        if self.products is None:
            return "sizes are symbolic"
        if self.products == 1:
            return "as many products"
        return f"{self.products:.1f} times fewer products"


def counted(name: str, spec: Spec, row: str | None) -> Gain:
    """The expected gain of one pass, without running anything.

    Args:
        name: of the pass.
        spec: the problem.
        row: the row that the pass gets here.

    Returns:
        The gain.
    """
    now = _NOW[name]
    sizes = (*spec.out_size, *spec.in_size)
    if row == now or name == "grad_input":
        return Gain(now, 1.0)
    if not all(isinstance(n, int) for n in sizes):
        return Gain(now, None)
    return Gain(now, max(1.0, math.prod(spec.out_size) / math.prod(spec.in_size)))


def measured(eqn: Any, conv: Conv) -> dict[str, tuple[float, float]]:
    """Times each pass of a convolution on the default device, now and here.

    Args:
        eqn: the equation.
        conv: what it is in our terms.

    Returns:
        Median seconds of XLA's convolution and of ours, by pass.
    """
    rng = np.random.default_rng(0)
    x, w, dy = (
        jnp.asarray(rng.standard_normal(v.aval.shape), v.aval.dtype)
        for v in (*eqn.invars, eqn.outvars[0])
    )
    theirs = functools.partial(eqn.primitive.bind, **eqn.params)
    pair = (theirs, conv.run)
    if conv.is_weight_gradient:
        return {"grad_weight": _race(pair, (x, w))}

    def pulled(f: Callable[..., Any], position: int) -> Callable[..., Any]:
        def gradient(x: Any, w: Any, dy: Any) -> Any:
            return jax.vjp(f, x, w)[1](dy)[position]

        return gradient

    return {
        "forward": _race(pair, (x, w)),
        "grad_input": _race([pulled(f, 0) for f in pair], (x, w, dy)),
        "grad_weight": _race([pulled(f, 1) for f in pair], (x, w, dy)),
    }


def _race(functions: Any, arguments: Any, seconds: float = 0.5) -> tuple[float, float]:
    """Median seconds of two functions that are run in turns."""
    compiled = [jax.jit(f) for f in functions]
    for f in compiled:
        jax.block_until_ready(f(*arguments))
    times: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + seconds
    while len(times[0]) < 3 or time.perf_counter() < stop:
        for f, found in zip(compiled, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(f(*arguments))
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])
