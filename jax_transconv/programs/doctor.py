"""`doctor`: the transposed convolutions of a program, and what becomes of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from jax_transconv import plan
from jax_transconv.api import Explanation, explanation
from jax_transconv.ops.primitives import forward_p, grad_input_p, grad_weight_p
from jax_transconv.programs.convs import Conv, is_candidate, recognise
from jax_transconv.programs.rewrite import exchanged, subprograms, trace
from jax_transconv.spec import Spec

__all__ = ["Finding", "Report", "diagnose", "doctor"]

_OURS = {
    forward_p: ("forward", Spec.of_forward),
    grad_input_p: ("grad_input", Spec.of_grad_input),
    grad_weight_p: ("grad_weight", Spec.of_grad_weight),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """One transposed convolution.

    Attributes:
        place: the calls that it is inside of, and the layer if the program names it.
        shapes: of its operands and of its result.
        status: "ours" if it runs here already, "taken" if `accelerate` takes it, or
            "left" if it does not.
        explanation: the row of each pass, unless it is left.
        reason: why it is left, or "".
    """

    place: str
    shapes: tuple[tuple[int, ...], ...]
    status: str
    explanation: Explanation | None
    reason: str = ""

    def __str__(self) -> str:
        *operands, result = self.shapes
        line = (
            f"{self.place or 'top level'}: {' * '.join(map(str, operands))} -> {result}"
        )
        if self.explanation is None:
            return f"{line}\n  left alone: {self.reason}"
        words = {"ours": "runs here already", "taken": "taken by accelerate"}
        rows = ", ".join(f"{n} {p.row}" for n, p in self.explanation.plans.items())
        return f"{line}\n  {words[self.status]}: {rows}"


@dataclasses.dataclass(frozen=True)
class Report:
    """What `doctor` found.

    Attributes:
        device: the device that the rows were planned for.
        findings: in the order of the program. What is inside of a loop is there once.
    """

    device: plan.DeviceFacts
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        counts = {
            status: sum(f.status == status for f in self.findings)
            for status in ("taken", "ours", "left")
        }
        count = len(self.findings)
        head = (
            f"{count} transposed convolution{'s' * (count != 1)} on "
            f"{self.device.name or self.device.platform}: {counts['taken']} for "
            f"accelerate to take, {counts['ours']} here already, {counts['left']} left "
            "alone"
        )
        return "\n".join([head, *map(str, self.findings)])


def doctor(
    fn: Callable[..., Any], *args: Any, platform: str | None = None, **kwargs: Any
) -> Report:
    """Lists the transposed convolutions in a function, and the plan that each gets.

    Args:
        fn: a function that JAX can trace. It is not run.
        *args: its arguments: arrays, `jax.ShapeDtypeStruct`s in their place, or
            whatever else it takes.
        platform: "cpu", "cuda", ...: default, the platform that JAX would use.
        **kwargs: its arguments by name.

    Returns:
        The report, which is printed as well. Where a finding is "taken", `accelerate`
        would run it; its `explanation` is that of `explain`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def up(x, kernel):
        ...     return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME")
        >>> report = doctor(up, jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)))
        ... # doctest: +ELLIPSIS
        1 transposed convolution on ...: 1 for accelerate to take, 0 here already, ...
        top level: (1, 4, 4, 3) * (3, 3, 3, 8) -> (1, 8, 8, 8)
          taken by accelerate: forward ..., grad_input ..., grad_weight ...
        >>> [finding.status for finding in report.findings]
        ['taken']
    """
    report = diagnose(fn, args, kwargs, platform)
    print(report)
    return report


def diagnose(
    fn: Callable[..., Any], args: Any, kwargs: Any, platform: str | None
) -> Report:
    """As `doctor`, without printing."""
    program, _, _ = trace(fn, args, kwargs)
    findings = tuple(_search(program.jaxpr, "", platform))
    return Report(plan.device_of(platform), findings)


def _search(jaxpr: Any, place: str, platform: str | None) -> Iterator[Finding]:
    for eqn in jaxpr.eqns:
        here = "/".join(filter(None, (place, str(eqn.source_info.name_stack))))
        if is_candidate(eqn):
            yield _candidate(eqn, here, platform)
        elif eqn.primitive in _OURS:
            name, of = _OURS[eqn.primitive]
            spec = of(eqn.params["geometry"], *(v.aval for v in eqn.invars[:2]))
            found = explanation(spec, platform, eqn.params["backend"], (name,))
            yield Finding(here, _shapes(eqn), "ours", found)
        else:
            name = eqn.params.get("name", eqn.primitive.name)
            inside = "/".join(filter(None, (here, str(name))))
            for inner in subprograms(eqn):
                yield from _search(inner, inside, platform)


def _candidate(eqn: Any, place: str, platform: str | None) -> Finding:
    conv = recognise(eqn, "auto")
    if not isinstance(conv, Conv):
        return Finding(place, _shapes(eqn), "left", None, conv)
    if exchanged(eqn, conv) is None:
        reason = "its result varies over a mesh, or is laid out on one"
        return Finding(place, _shapes(eqn), "left", None, reason)
    passes = ("grad_weight",) if conv.is_weight_gradient else None
    found = explanation(conv.spec, platform, "auto", passes)
    return Finding(place, _shapes(eqn), "taken", found)


def _shapes(eqn: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(v.aval.shape) for v in (*eqn.invars[:2], eqn.outvars[0]))
