"""`doctor`: the transposed convolutions of a program, and what becomes of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax_transconv import plan
from jax_transconv.api import Explanation, explanation
from jax_transconv.ops.primitives import forward_p, grad_input_p, grad_weight_p
from jax_transconv.programs.convs import Conv, is_candidate, recognise
from jax_transconv.programs.gains import Gain, counted, measured
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
        gains: what XLA does now and what is to be gained, by pass, if it is taken.
    """

    place: str
    shapes: tuple[tuple[int, ...], ...]
    status: str
    explanation: Explanation | None
    reason: str = ""
    gains: Mapping[str, Gain] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        *operands, result = self.shapes
        line = (
            f"{self.place or 'top level'}: {' * '.join(map(str, operands))} -> {result}"
        )
        if self.explanation is None:
            return f"{line}\n  left alone: {self.reason}"
        plans = self.explanation.plans
        if self.status == "ours":
            rows = ", ".join(f"{name} {p.row}" for name, p in plans.items())
            return f"{line}\n  runs here already: {rows}"
        table = [("pass", "now", "here", "expected gain")]
        for name, gain in self.gains.items():
            if gain.seconds is not None:
                table[0] = (*table[0][:3], "measured gain")
            table.append((name, gain.now, str(plans[name].row), str(gain)))
        return "\n".join([f"{line}\n  taken by accelerate:", *_aligned(table)])


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "    "
        + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


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
    fn: Callable[..., Any],
    *args: Any,
    platform: str | None = None,
    measure: bool = False,
    **kwargs: Any,
) -> Report:
    """Lists the transposed convolutions in a function, and the plan that each gets.

    Beside each pass of those that `accelerate` would take stands what XLA does now, and
    the expected gain: how many times fewer products, or, with `measure`, both times.

    Products are all that the expectation counts. Bytes, and how well either kernel uses
    the device, are not in it: a pass that waits for memory gains less than it says, and
    one with as many products may be faster or slower. Only `measure` tells.

    Args:
        fn: a function that JAX can trace. It is not run.
        *args: its arguments: arrays, `jax.ShapeDtypeStruct`s in their place, or
            whatever else it takes.
        platform: "cpu", "cuda", ...: default, the platform that JAX would use.
        measure: whether to time each convolution that `accelerate` would take, as XLA
            runs it and as we do, with random operands on the default device.
        **kwargs: its arguments by name.

    Returns:
        The report, which is printed as well. Where a finding is "taken", `accelerate`
        would run it; its `explanation` is that of `explain`.

    Raises:
        ValueError: if no such platform is known, or it is to measure on another than
            the default device's.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def up(x, kernel):
        ...     return jax.lax.conv_transpose(x, kernel, (2, 2), "SAME")
        >>> report = doctor(up, jnp.ones((1, 4, 4, 3)), jnp.ones((3, 3, 3, 8)))
        ... # doctest: +ELLIPSIS
        1 transposed convolution on ...: 1 for accelerate to take, 0 here already, ...
        top level: (1, 4, 4, 3) * (3, 3, 3, 8) -> (1, 8, 8, 8)
          taken by accelerate:
            pass         now               here ... expected gain
            forward      xla:dilated       ...
            grad_input   xla:strided       ... as many products
            grad_weight  stretched filter  ... 4.0 times fewer products
        >>> [finding.status for finding in report.findings]
        ['taken']
    """
    report = diagnose(fn, args, kwargs, platform, measure)
    print(report)
    return report


def diagnose(
    fn: Callable[..., Any],
    args: Any,
    kwargs: Any,
    platform: str | None,
    measure: bool = False,
) -> Report:
    """As `doctor`, without printing."""
    device = plan.device_of(platform)
    here = plan.device_of(None).platform
    if measure and device.platform != here:
        raise ValueError(
            f"doctor: measure runs on the default device, whose platform is {here}, "
            f"got platform {platform!r}.\n"
            "Resolution: leave platform out, or measure on such a machine."
        )
    program, _, _ = trace(fn, args, kwargs)
    findings = tuple(_search(program.jaxpr, "", platform, measure))
    return Report(device, findings)


def _search(
    jaxpr: Any, place: str, platform: str | None, measure: bool
) -> Iterator[Finding]:
    for eqn in jaxpr.eqns:
        here = "/".join(filter(None, (place, str(eqn.source_info.name_stack))))
        if is_candidate(eqn):
            yield _candidate(eqn, here, platform, measure)
        elif eqn.primitive in _OURS:
            name, of = _OURS[eqn.primitive]
            spec = of(eqn.params["geometry"], *(v.aval for v in eqn.invars[:2]))
            found = explanation(spec, platform, eqn.params["backend"], (name,))
            yield Finding(here, _shapes(eqn), "ours", found)
        else:
            name = eqn.params.get("name", eqn.primitive.name)
            inside = "/".join(filter(None, (here, str(name))))
            for inner in subprograms(eqn):
                yield from _search(inner, inside, platform, measure)


def _candidate(eqn: Any, place: str, platform: str | None, measure: bool) -> Finding:
    conv = recognise(eqn, "auto")
    if not isinstance(conv, Conv):
        return Finding(place, _shapes(eqn), "left", None, conv)
    if exchanged(eqn, conv) is None:
        reason = "its result varies over a mesh, or is laid out on one"
        return Finding(place, _shapes(eqn), "left", None, reason)
    passes = ("grad_weight",) if conv.is_weight_gradient else None
    found = explanation(conv.spec, platform, "auto", passes)
    gains = {name: counted(name, conv.spec, p.row) for name, p in found.plans.items()}
    if measure and all(isinstance(n, int) for shape in _shapes(eqn) for n in shape):
        for name, seconds in measured(eqn, conv).items():
            gains[name] = dataclasses.replace(gains[name], seconds=seconds)
    return Finding(place, _shapes(eqn), "taken", found, gains=gains)


def _shapes(eqn: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(v.aval.shape) for v in (*eqn.invars[:2], eqn.outvars[0]))
