"""The table of rows: every way to run a pass, best first, and when each one applies.

A row answers two questions about a problem. `supports`: can it run it at all? `defers`:
if so, is another row known to be faster, so that `backend="auto"` should pass it by?
Both answer None, or the reason in words.
"""

from __future__ import annotations

import dataclasses
import re

from jax_transconv.ffi import targets
from jax_transconv.plan import measured
from jax_transconv.plan.device import DeviceFacts
from jax_transconv.plan.measured import Rule
from jax_transconv.spec import Spec

__all__ = ["CANDIDATES", "Candidate"]

_FORWARD, _INPUT, _WEIGHT = targets.PASSES


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
    if row.backend != "cuda" or facts.capability == (0, 0):
        return None
    built = targets.architectures()
    if built and not any(_runs_on(a, facts.capability) for a in built):
        major, minor = facts.capability
        listed = ", ".join(built)
        return f"built for {listed}, the device has compute capability {major}.{minor}"
    return None


def _runs_on(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for an architecture of CMake's spelling runs on a device."""
    match = re.fullmatch(r"(\d+)(\d)([af]?)(-real|-virtual)?", architecture)
    if match is None:
        return True  # "native", "all": no number to compare with
    compiled = int(match[1]), int(match[2])
    if match[3] == "a":
        return capability == compiled
    if match[4] == "-real" or match[3] == "f":
        return capability[0] == compiled[0] and capability >= compiled
    return capability >= compiled


def _only_empty(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    return None if spec.is_empty else "the batch is not empty"


def _not_empty(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    return "the batch is empty" if spec.is_empty else None


def _static(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    return None if spec.is_static else "sizes are symbolic"


def _hopper(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, spec
    if facts.capability == (9, 0):
        return None
    return "needs compute capability 9.0, got {}.{}".format(*facts.capability)


def _tensor_cores(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, spec
    if facts.capability >= (8, 0):
        return None
    return "needs compute capability 8.0, got {}.{}".format(*facts.capability)


def _native(row: str) -> Rule:
    """The kernel's own launcher says what it can't run."""

    def supports(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
        del facts
        return targets.unsupported(row, pass_name, spec)

    return supports


_UNROLLED_TAPS = 64


def _few_taps(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    if spec.taps > _UNROLLED_TAPS:
        return f"{spec.taps} taps would unroll into {spec.taps} contractions"
    return None


def _few_phases(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    del pass_name, facts
    s_h, s_w = spec.geometry.stride
    if s_h * s_w > _UNROLLED_TAPS:
        return f"stride {s_h}x{s_w} would unroll into {s_h * s_w} correlations"
    return None


_MOST_FEATURES = 32768


def _no_xla_fault(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
    """XLA:CPU computes garbage for one feature of one pixel and very many results."""
    features, results = spec.in_per_group, spec.out_channels
    if pass_name != _FORWARD:
        features, results = spec.out_per_group, spec.in_channels
    if facts.platform != "cpu" or features > 1 or results <= _MOST_FEATURES:
        return None
    if spec.in_size != (1, 1):
        return None
    return f"XLA:CPU is wrong for 1 channel, 1 pixel and over {_MOST_FEATURES} results"


def _all(*rules: Rule) -> Rule:
    """The first reason that any of the rules has."""

    def rule(pass_name: str, spec: Spec, facts: DeviceFacts) -> str | None:
        reasons = (r(pass_name, spec, facts) for r in rules)
        return next((reason for reason in reasons if reason), None)

    return rule


def _kernel(row: str, *rules: Rule) -> Rule:
    """Rules of a native row: those of every one, its own, and its launcher's."""
    return _all(_not_empty, _static, *rules, _native(row))


CANDIDATES: tuple[Candidate, ...] = (
    Candidate("xla:empty", targets.PASSES, _only_empty),
    Candidate(
        "cuda:sm90_lines",
        (_FORWARD, _INPUT),
        _kernel("cuda:sm90_lines", _hopper),
        measured.lines_lose,
    ),
    Candidate(
        "cuda:mma_im2col",
        (_FORWARD, _INPUT),
        _kernel("cuda:mma_im2col", _tensor_cores),
        measured.im2col_loses,
    ),
    Candidate(
        "cuda:mma_im2col_wgrad",
        (_WEIGHT,),
        _kernel("cuda:mma_im2col_wgrad", _tensor_cores),
        measured.im2col_loses,
    ),
    Candidate(
        "cuda:sm90_gemm",
        (_FORWARD, _INPUT),
        _kernel("cuda:sm90_gemm", _hopper),
        measured.gemm_loses,
    ),
    Candidate(
        "cuda:sm90_gemm_wgrad",
        (_WEIGHT,),
        _kernel("cuda:sm90_gemm_wgrad", _hopper),
        measured.gemm_loses,
    ),
    Candidate(
        "cuda:sm90_lines_wgrad",
        (_WEIGHT,),
        _kernel("cuda:sm90_lines_wgrad", _hopper),
        measured.lines_wgrad_loses,
    ),
    Candidate(
        "cuda:sm90_rolling",
        (_FORWARD, _INPUT),
        _kernel("cuda:sm90_rolling", _hopper),
        measured.hopper_loses(rolling=True),
    ),
    Candidate(
        "cuda:sm90_tile",
        (_FORWARD, _INPUT),
        _kernel("cuda:sm90_tile", _hopper),
        _all(measured.half_strips, measured.hopper_loses()),
    ),
    Candidate(
        "cuda:sm90_wgrad_rolling",
        (_WEIGHT,),
        _kernel("cuda:sm90_wgrad_rolling", _hopper),
        _all(
            measured.short_rows,
            measured.few_strips,
            measured.split_loses,
            measured.hopper_loses(rolling=True),
        ),
    ),
    Candidate(
        "cuda:sm90_wgrad_cells",
        (_WEIGHT,),
        _kernel("cuda:sm90_wgrad_cells", _hopper),
        _all(measured.packing_loses, measured.hopper_loses(packed=True)),
    ),
    Candidate(
        "cuda:sm90_wgrad",
        (_WEIGHT,),
        _kernel("cuda:sm90_wgrad", _hopper),
        _all(measured.half_empty, measured.hopper_loses()),
    ),
    Candidate(
        "cuda:mma_tile",
        (_FORWARD, _INPUT),
        _kernel("cuda:mma_tile", _tensor_cores),
        measured.portable_loses,
    ),
    Candidate(
        "cuda:mma_wgrad",
        (_WEIGHT,),
        _kernel("cuda:mma_wgrad", _tensor_cores),
        measured.portable_loses,
    ),
    Candidate(
        "cuda:mma_f64",
        targets.PASSES,
        _kernel("cuda:mma_f64", _tensor_cores),
        measured.float64_loses,
    ),
    Candidate(
        "cuda:direct_wgrad",
        (_WEIGHT,),
        _kernel("cuda:direct_wgrad"),
        measured.direct_loses,
    ),
    Candidate(
        "cuda:direct",
        (_FORWARD, _INPUT),
        _kernel("cuda:direct"),
        measured.direct_loses,
    ),
    Candidate("cuda:simt", targets.PASSES, _kernel("cuda:simt"), measured.library_wins),
    Candidate("cpu:depthwise", targets.PASSES, _kernel("cpu:depthwise")),
    Candidate("cpu:tiled", targets.PASSES, _kernel("cpu:tiled"), measured.small_dense),
    Candidate(
        "xla:taps",
        targets.PASSES,
        _all(_not_empty, _static, _few_taps),
        measured.taps_lose,
    ),
    Candidate(
        "xla:phases",
        (_FORWARD,),
        _all(_not_empty, _static, _no_xla_fault, _few_phases),
        measured.phases_lose,
    ),
    Candidate("xla:dilated", (_FORWARD,), _all(_not_empty, _no_xla_fault)),
    Candidate("xla:strided", (_INPUT,), _all(_not_empty, _no_xla_fault)),
    Candidate("xla:filter", (_WEIGHT,), _all(_not_empty, _no_xla_fault)),
)
