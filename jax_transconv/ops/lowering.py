"""Lowering: ask the planner, once per platform, and build what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.interpreters import mlir

from jax_transconv import plan, xla
from jax_transconv.ffi import call
from jax_transconv.ops import sharding
from jax_transconv.ops.primitives import forward_p, grad_input_p, grad_weight_p
from jax_transconv.spec import Geometry, Spec

__all__: list[str] = []

_SPECS = {
    "forward": Spec.of_forward,
    "grad_input": Spec.of_grad_input,
    "grad_weight": Spec.of_grad_weight,
}
_CALLS = {
    "forward": call.forward,
    "grad_input": call.grad_input,
    "grad_weight": call.grad_weight,
}


def _row(pass_name: str, spec: Spec, platform: str, backend: str) -> str:
    chosen = plan.choose(pass_name, spec, plan.facts(platform), backend)
    return plan.require(chosen, backend)


def _rule(pass_name: str, platform: str) -> Callable[..., Any]:
    def run(
        *operands: Any, geometry: Geometry, backend: str, partition: Any, **bias: bool
    ) -> Any:
        def compute(geometry: Geometry, *operands: Any) -> Any:
            """The whole pass, or one shard of it, with a row of its own."""
            spec = _SPECS[pass_name](geometry, *operands[:2])
            row = _row(pass_name, spec, platform, backend)
            if form := xla.ROWS.get((row, pass_name)):
                return form(spec, platform, *operands, **bias)
            return _CALLS[pass_name](row, spec, *operands, **bias)

        spec = _SPECS[pass_name](geometry, *operands[:2])
        if partition is None or not spec.is_static or spec.is_empty:
            return compute(geometry, *operands)
        has_bias = bias.get("bias", len(operands) == 3)
        return sharding.partitioned(pass_name, spec, compute, has_bias)(*operands)

    return run


def _register(pass_name: str, primitive: Any) -> None:
    def lower(platform: str) -> Any:
        return mlir.lower_fun(
            _rule(pass_name, platform), multiple_results=primitive.multiple_results
        )

    for platform in ("cpu", "cuda"):
        mlir.register_lowering(primitive, lower(platform), platform=platform)
    mlir.register_lowering(primitive, lower("default"))


_register("forward", forward_p)
_register("grad_input", grad_input_p)
_register("grad_weight", grad_weight_p)
