"""Choosing a row for each pass, and saying why."""

from __future__ import annotations

import dataclasses
import functools

from jax_transconv import debug
from jax_transconv.plan.candidates import CANDIDATES, Candidate, unavailable
from jax_transconv.plan.device import PLATFORMS, DeviceFacts, device_of, facts
from jax_transconv.spec import Spec, value_error

__all__ = [
    "CANDIDATES",
    "PLATFORMS",
    "Candidate",
    "DeviceFacts",
    "Plan",
    "available_backends",
    "check_backend",
    "choose",
    "device_of",
    "facts",
]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The row chosen for one pass, and what was said of every other.

    Attributes:
        pass_name: "forward", "grad_input" or "grad_weight".
        row: name of the chosen row, or None if none could run.
        verdicts: (row name, reason) of every row of this pass, in the table's order;
            the reason of the chosen row is "chosen".
    """

    pass_name: str
    row: str | None
    verdicts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.verdicts)
        lines = [f"{self.pass_name}: {self.row}"]
        lines += [
            f"  {'*' if name == self.row else ' '} {name:<{width}}  {reason}"
            for name, reason in self.verdicts
        ]
        return "\n".join(lines)


def backends() -> tuple[str, ...]:
    """Every backend that has a row, in the table's order."""
    return tuple(dict.fromkeys(row.backend for row in CANDIDATES))


def available_backends(platform: str) -> tuple[str, ...]:
    """Backends that can run on a platform with what is built and installed."""
    device = facts(platform)
    return tuple(
        b
        for b in backends()
        if any(unavailable(r, device) is None for r in CANDIDATES if r.backend == b)
    )


def check_backend(backend: str) -> None:
    """Checks the word that a caller gave for `backend`.

    Raises:
        ValueError: if it is neither "auto", nor a backend, nor a row.
    """
    rows = [row.name for row in CANDIDATES]
    if backend != "auto" and backend not in backends() and backend not in rows:
        raise value_error(
            f"backend must be 'auto', one of {', '.join(backends())}, or a row of the "
            f"table ({', '.join(rows)}), got {backend!r}.",
            "leave backend='auto', which takes the fastest row that applies.",
        )


def _selected(row: Candidate, pass_name: str, backend: str) -> str | None:
    """Why the caller's `backend` rules a row out, or None."""
    if backend == "auto" or row.backend == backend or row.name == backend:
        return None
    named = next((r for r in CANDIDATES if r.name == backend), None)
    # A named row binds the passes that it has; the others stay on its backend.
    if named and pass_name not in named.passes and row.backend == named.backend:
        return None
    return f"backend={backend!r} was asked for"


def choose(
    pass_name: str, spec: Spec, device: DeviceFacts, backend: str = "auto"
) -> Plan:
    """Takes the first row of the table that applies.

    Args:
        pass_name: "forward", "grad_input" or "grad_weight".
        spec: the problem.
        device: what is known of the device.
        backend: "auto", a backend or a row name.

    Returns:
        The plan; its `row` is None if no row applies.
    """
    plan = _choose(pass_name, spec, device, backend, debug.disabled_rows())
    debug.log_plan(plan, spec)
    return plan


@functools.lru_cache(maxsize=4096)
def _choose(
    pass_name: str,
    spec: Spec,
    device: DeviceFacts,
    backend: str,
    disabled: frozenset[str],
) -> Plan:
    rows = [row for row in CANDIDATES if pass_name in row.passes]
    declined = {
        row.name: _selected(row, pass_name, backend)
        or ("disabled by TRANSCONV_DISABLE" if row.name in disabled else None)
        or unavailable(row, device)
        or row.supports(pass_name, spec, device)
        for row in rows
    }
    able = [row for row in rows if declined[row.name] is None]
    slower = {row.name: row.defers(pass_name, spec, device) for row in able}
    # A row steps aside for a faster one, not for none.
    chosen = next((r.name for r in able if slower[r.name] is None), None)
    chosen = chosen or next((r.name for r in able), None)

    def verdict(name: str) -> str:
        if name == chosen:
            return "chosen"
        return declined[name] or slower[name] or f"could run; {chosen} comes first"

    return Plan(pass_name, chosen, tuple((r.name, verdict(r.name)) for r in rows))


def require(plan: Plan, backend: str) -> str:
    """The chosen row, or an error that says why every row declined.

    Raises:
        ValueError: if no row applies.
    """
    if plan.row is None:
        raise value_error(
            f"backend={backend!r} has no row for {plan.pass_name} of this problem.\n"
            f"{plan}",
            "use backend='auto'.",
        )
    return plan.row
