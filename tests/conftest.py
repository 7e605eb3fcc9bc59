"""Set-up of the suite: strict JAX, eight CPU devices, and requirements.

The same command runs everywhere. On a machine with a GPU that is the default device
and the tests marked ``cuda`` run too; elsewhere they are skipped.
``TRANSCONV_REQUIRE`` (a comma-separated list of ``cuda``, ``cpu``, ``torch``,
``flax``, ``equinox``, ``haiku``, ``demo``) turns the skip for want of that thing into a
failure, so that a machine which should have it cannot pass by skipping.

``TRANSCONV_SAMPLE=4`` runs one case in four of every parametrized test, and every test
at least once: for a second interpreter, after another has run them all. The full suite
draws its initial weights with XLA's generator, the sample with JAX's default one.
"""

import functools
import importlib.util
import os
import pathlib
import sys
import zlib

_FLAG = "--xla_force_host_platform_device_count=8"
if _FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAG}".strip()
# Otherwise the first test process takes three quarters of the card for itself.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
# The test processes share the cores; on a large machine the threads of the reference's
# matrix products would wait for each other most of the time.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import hypothesis  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
_ONE_IN = int(os.environ.get("TRANSCONV_SAMPLE", "1"))
if _ONE_IN <= 1:
    # The default one takes XLA:CPU the better part of a second to compile, for every
    # shape anew.
    jax.config.update("jax_default_prng_impl", "rbg")

hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=int(os.environ.get("TRANSCONV_EXAMPLES", "25")),
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.function_scoped_fixture,
    ],
)
hypothesis.settings.load_profile("suite")

_MARKERS = {
    "cuda": "needs a CUDA device",
    "slow": "takes more than a few seconds",
    "torch": "compares with PyTorch",
    "flax": "needs flax",
    "equinox": "needs equinox",
    "haiku": "needs haiku",
    "demo": "needs the packages of the examples",
}
# Of these, what a machine may lack.
_OPTIONAL = ("cuda", "torch", "flax", "equinox", "haiku", "demo")
# The packages of one, where they are not its name.
_PACKAGES = {"demo": ("flax", "optax", "PIL", "sklearn")}


def pytest_configure(config):
    for name, meaning in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def required() -> frozenset[str]:
    """What this run must not skip for want of."""
    names = os.environ.get("TRANSCONV_REQUIRE", "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


@functools.cache
def _missing(name: str) -> str | None:
    """Why the thing that a marker stands for is not here, or None."""
    if name == "cuda":
        try:
            jax.devices("cuda")
        except RuntimeError as error:
            return f"no CUDA device: {error}"
        return None
    for package in _PACKAGES.get(name, (name,)):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves the sample; what is in it depends on names alone, in every process."""
    if _ONE_IN <= 1:
        return
    kept, left_out, seen = [], [], set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        # A case for another machine does not count as the test's one.
        here = all(
            _missing(name) is None
            for name in _OPTIONAL
            if item.get_closest_marker(name)
        )
        drawn = zlib.crc32(item.nodeid.encode()) % _ONE_IN == 0
        if drawn or (here and test not in seen):
            kept.append(item)
        else:
            left_out.append(item)
        if here:
            seen.add(test)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_runtest_setup(item):
    for name in _OPTIONAL:
        if item.get_closest_marker(name) is None:
            continue
        reason = _missing(name)
        if reason is None:
            continue
        if name in required():
            pytest.fail(f"TRANSCONV_REQUIRE={name}, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the name of the test."""
    seed = list(request.node.nodeid.encode())
    return np.random.default_rng(seed)
