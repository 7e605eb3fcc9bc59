"""The table of rows: every way to run a pass, best first, and when each one applies.

A row answers two questions about a problem. `supports`: can it run it at all? `defers`:
if so, is another row known to be faster, so that `backend="auto"` should pass it by?
Both answer None, or the reason in words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from jax_transconv.ffi import targets
from jax_transconv.plan.device import DeviceFacts
from jax_transconv.spec import Spec

__all__ = ["CANDIDATES", "Candidate"]

Rule = Callable[[str, Spec, DeviceFacts], "str | None"]


def _always(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, spec, facts
    return None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One row.

    Attributes:
        name: "backend:algorithm", as in cc/core/algorithms.def for native rows.
        passes: the passes that it implements.
        supports: why it can't run a problem, or None.
        defers: why auto passes it by although it could run, or None.
    """

    name: str
    passes: tuple[str, ...]
    supports: Rule = _always
    defers: Rule = _always

    @property
    def backend(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]


def unavailable(row: Candidate, facts: DeviceFacts) -> str | None:
    """Why a row's backend is not there for a device, or None."""
    if row.backend == "xla":
        return None
    if row.backend != facts.platform:
        return f"runs on {row.backend}, the device is {facts.platform}"
    if row.name not in targets.algorithm_ids():
        return f"the native module for {row.backend} was not built"
    return None


def _needs_static(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    return None if spec.is_static else "sizes are symbolic"


def _hopper_tile(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    if facts.capability != (9, 0):
        return "needs compute capability 9.0, got {}.{}".format(*facts.capability)
    if reason := _needs_static(pass_name, spec, facts):
        return reason
    return targets.unsupported("cuda:sm90_tile", pass_name, spec)


def _only_empty(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    return None if spec.is_empty else "the batch is not empty"


def _not_empty(rule: Rule) -> Rule:
    def supports(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
        return "the batch is empty" if spec.is_empty else rule(pass_name, spec, facts)

    return supports


def _depthwise(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    if spec.in_per_group != 1:
        return f"needs one input channel a group, got {spec.in_per_group}"
    return _needs_static(pass_name, spec, facts)


_MANY_TAPS = 64


def _few_taps(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    if spec.taps > _MANY_TAPS:
        return f"{spec.taps} taps would unroll into {spec.taps} contractions"
    return _needs_static(pass_name, spec, facts)


def _few_phases(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    s_h, s_w = spec.geometry.stride
    if s_h * s_w > _MANY_TAPS:
        return f"stride {s_h}x{s_w} would unroll into {s_h * s_w} correlations"
    return _needs_static(pass_name, spec, facts)


def _dilated_wins(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name
    g = spec.geometry
    if not spec.is_strided:
        return "without a stride it is the same correlation as xla:dilated"
    if facts.platform != "cpu" and g.groups == 1 and g.dilation == (1, 1):
        return "XLA maps xla:dilated to a library's backward-data convolution"
    if facts.platform == "cpu" and max(g.stride) <= 2 and g.dilation == (1, 1):
        return "XLA:CPU runs small strides as fast stretched"
    return None


def _filter_wins(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name
    if facts.platform != "cpu":
        return "XLA maps xla:filter to a library's filter-gradient convolution"
    if not spec.is_strided:
        return "without a stride xla:filter is one plain convolution"
    return None


_FORWARD, _INPUT, _WEIGHT = targets.PASSES

CANDIDATES: tuple[Candidate, ...] = (
    Candidate("xla:empty", targets.PASSES, _only_empty),
    Candidate("cuda:sm90_tile", (_FORWARD, _INPUT), _not_empty(_hopper_tile)),
    Candidate("cuda:simt", targets.PASSES, _not_empty(_needs_static)),
    Candidate("cpu:depthwise", targets.PASSES, _not_empty(_depthwise)),
    Candidate("cpu:tiled", targets.PASSES, _not_empty(_needs_static)),
    Candidate("xla:phases", (_FORWARD,), _not_empty(_few_phases), _dilated_wins),
    Candidate("xla:dilated", (_FORWARD,), _not_empty(_always)),
    Candidate("xla:strided", (_INPUT,), _not_empty(_always)),
    Candidate("xla:taps", (_WEIGHT,), _not_empty(_few_taps), _filter_wins),
    Candidate("xla:filter", (_WEIGHT,), _not_empty(_always)),
)
