"""What the planner knows of a device."""

from __future__ import annotations

import dataclasses

import jax

from jax_transconv.spec import value_error

__all__ = ["PLATFORMS", "DeviceFacts", "device_of", "facts"]

# What a caller may name; the platform of JAX's own default needs no name.
PLATFORMS = ("cpu", "cuda", "gpu", "rocm", "tpu")


@dataclasses.dataclass(frozen=True)
class DeviceFacts:
    """Facts that rows decide by; made up freely in tests.

    Attributes:
        platform: JAX's name of the platform ("cpu", "cuda", "tpu", ...).
        capability: compute capability of a CUDA device, else (0, 0).
        sm_count: multiprocessors of a CUDA device, else 0.
        name: what the device calls itself.
    """

    platform: str
    capability: tuple[int, int] = (0, 0)
    sm_count: int = 0
    name: str = ""


# What a program exported for CUDA may count on where no device is there to ask.
_OLDEST_CUDA = DeviceFacts("cuda", (7, 5), 0, "any CUDA device")


def facts(platform: str) -> DeviceFacts:
    """Facts of this process's devices of a platform; the least capable one counts."""
    if platform != "cuda":
        return DeviceFacts(platform)
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return _OLDEST_CUDA
    found = []
    for device in devices:
        major, _, minor = str(device.compute_capability).partition(".")
        found.append(
            DeviceFacts(
                "cuda",
                (int(major), int(minor or 0)),
                int(getattr(device, "core_count", 0)),
                device.device_kind,
            )
        )
    return min(found, key=lambda f: (f.capability, f.sm_count), default=_OLDEST_CUDA)


def device_of(platform: str | None) -> DeviceFacts:
    """Facts of the platform that a caller named, or of the one that JAX would use.

    Raises:
        ValueError: if no such platform is known.
    """
    if platform is None or platform not in PLATFORMS:
        default = jax.default_backend()
        if platform not in (None, default):
            raise value_error(
                f"platform must be one of {', '.join(PLATFORMS)}, got {platform!r}.",
                f"leave platform out for {default}, which JAX would use.",
            )
        platform = default
    return facts("cuda" if platform == "gpu" else platform)
