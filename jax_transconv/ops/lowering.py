"""Lowering: ask the planner, once per platform, and build what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.interpreters import mlir

from jax_transconv import plan, xla
from jax_transconv.ffi import call
from jax_transconv.ops.primitives import forward_p, grad_input_p, grad_weight_p
from jax_transconv.spec import Geometry, Spec

__all__: list[str] = []


def _row(pass_name: str, spec: Spec, platform: str, backend: str) -> str:
    chosen = plan.choose(pass_name, spec, plan.facts(platform), backend)
    return plan.require(chosen, backend)


def _forward(platform: str) -> Callable[..., Any]:
    def run(x: Any, w: Any, *b: Any, geometry: Geometry, backend: str) -> Any:
        spec = Spec.of_forward(geometry, x, w)
        row = _row("forward", spec, platform, backend)
        if compute := xla.ROWS.get((row, "forward")):
            return compute(spec, platform, x, w, *b)
        return call.forward(row, spec, x, w, *b)

    return run


def _grad_input(platform: str) -> Callable[..., Any]:
    def run(dy: Any, w: Any, *, geometry: Geometry, backend: str) -> Any:
        spec = Spec.of_grad_input(geometry, dy, w)
        row = _row("grad_input", spec, platform, backend)
        if compute := xla.ROWS.get((row, "grad_input")):
            return compute(spec, platform, dy, w)
        return call.grad_input(row, spec, dy, w)

    return run


def _grad_weight(platform: str) -> Callable[..., Any]:
    def run(x: Any, dy: Any, *, geometry: Geometry, backend: str, bias: bool) -> Any:
        spec = Spec.of_grad_weight(geometry, x, dy)
        row = _row("grad_weight", spec, platform, backend)
        if compute := xla.ROWS.get((row, "grad_weight")):
            return compute(spec, platform, x, dy, bias=bias)
        return call.grad_weight(row, spec, x, dy, bias=bias)

    return run


def _register(primitive: Any, rule: Callable[[str], Callable[..., Any]]) -> None:
    def lower(platform: str) -> Any:
        return mlir.lower_fun(
            rule(platform), multiple_results=primitive.multiple_results
        )

    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, lower(platform), platform=platform)
    mlir.register_lowering(primitive, lower("default"))


_register(forward_p, _forward)
_register(grad_input_p, _grad_input)
_register(grad_weight_p, _grad_weight)
