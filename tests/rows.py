"""Rows of the table of candidates, forced: one pass, one row, one program."""

import functools

import cases
import jax
import jax.numpy as jnp
import numpy as np

import jax_transconv
from jax_transconv import conv_transpose2d, plan

KERNEL_IS_STRIDE = next(case for case in cases.WIDE if case.name == "wide_blocks")


def case_for(row) -> cases.Case:
    """A problem that a row takes: stride 1 and few channels, or a kernel's stride."""
    return KERNEL_IS_STRIDE if "gemm" in row.name else cases.WIDE[0]


RESULTS = {"forward": ("y",), "grad_input": ("dx",), "grad_weight": ("dw", "db")}


def program(case, pass_name: str, backend: str, **keywords):
    """A jitted function of one pass alone, and the names of its operands.

    The transpose of a linear map holds nothing but that transpose: no forward pass that
    could be chosen, or refused, by another rule.
    """
    f = functools.partial(
        conv_transpose2d,
        **{**case.kwargs, **keywords},
        backend=backend,
        autodiff="both",
    )
    if pass_name == "forward":
        return jax.jit(f), ("x", "w", "b")
    if pass_name == "grad_input":

        def grad_input(dy, w, x):
            return jax.linear_transpose(lambda x: f(x, w), x)(dy)

        return jax.jit(grad_input, keep_unused=True), ("dy", "w", "x")

    def grad_weight(x, dy, w, b):
        if b is None:
            return jax.linear_transpose(lambda w: f(x, w), w)(dy)
        return jax.linear_transpose(lambda wb: f(x, *wb), (w, b))(dy)[0]

    return jax.jit(grad_weight, keep_unused=True), ("x", "dy", "w", "b")


def problem(case, platform: str, **keywords):
    """The checked problem, as the planner sees it."""
    x_shape = case.x_shape
    if case.layout == "NHWC":
        x_shape = (x_shape[0], *x_shape[2:], x_shape[1])
    dtype = jnp.dtype(case.dtype)
    return jax_transconv.explain(
        jax.ShapeDtypeStruct(x_shape, dtype),
        jax.ShapeDtypeStruct(case.weight_shape, dtype),
        platform=platform,
        **{**case.kwargs, **keywords},
    ).spec


def why_not(row, pass_name: str, spec, platform: str) -> str | None:
    """The reason that the planner gives for not taking a row that was asked for."""
    chosen = plan.choose(pass_name, spec, plan.facts(platform), row.name)
    verdicts = dict(chosen.verdicts)
    if chosen.row == row.name:
        return None
    assert chosen.row is None, f"{row.name} was asked for, {chosen.row} would run"
    return verdicts[row.name]


def replays(f, samples, count: int = 50) -> list:
    """What `f` returns for each of `count` calls, and whose: (sample, results).

    Command buffers (CUDA graphs) are on, and buffers move: inputs change from call to
    call, and all are kept with their results, so that no two get the same addresses.
    """
    options = {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUSTOM_CALL,CUDNN",
        "xla_gpu_graph_min_graph_size": "1",
    }
    samples = [jax.tree.map(np.asarray, sample) for sample in samples]
    compiled = jax.jit(f).lower(*samples[0]).compile(compiler_options=options)
    kept = []
    for i in range(count):
        args = jax.tree.map(jnp.asarray, samples[i % len(samples)])
        kept.append((i % len(samples), args, compiled(*args)))
    return [(sample, results) for sample, _, results in kept]
