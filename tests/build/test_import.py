"""What importing the package does, and does not, on any machine."""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import jax
import pytest

import jax_transconv
from jax_transconv.ffi import targets

PACKAGE = pathlib.Path(jax_transconv.__file__).parent


def python(code: str, check: bool = True, **environment: str):
    """Run code in a fresh interpreter with every warning an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


CALL = """
import jax, numpy as np
x, w = np.ones((1, 2, 3, 3), np.float32), np.ones((2, 2, 2, 2), np.float32)
y = jax_transconv.conv_transpose2d(x, w, stride=2)
assert y.shape == (1, 2, 6, 6), y.shape
assert float(y.sum()) == 144.0, float(y.sum())
"""


def test_no_backend_is_touched():
    """With a platform that does not exist, anything that asks for a device raises."""
    python("import jax_transconv", JAX_PLATFORMS="nowhere")
    done = python(f"import jax_transconv\n{CALL}", check=False, JAX_PLATFORMS="nowhere")
    assert done.returncode != 0
    assert "nowhere" in done.stderr


def test_import_is_lean():
    """Nothing optional comes along, and JAX's configuration stays as it was."""
    python(
        """
import jax
before = dict(jax.config.values)
import jax_transconv, sys
assert dict(jax.config.values) == before
found = {"torch", "flax", "safetensors", "scipy", "optax"} & set(sys.modules)
assert not found, found
"""
    )


def test_without_native_modules():
    """As on a platform that none was built for: plain JAX works and says why."""
    python(
        f"""
import sys
sys.modules["jax_transconv.ffi._cpu"] = None
sys.modules["jax_transconv.ffi._cuda"] = None
import jax_transconv
{CALL}
text = str(jax_transconv.explain(x, w, platform="cpu"))
assert "was not built" in text, text
try:
    jax_transconv.conv_transpose2d(x, w, backend="cpu")
except ValueError as error:
    assert "was not built" in str(error), error
    assert "Resolution:" in str(error), error
else:
    raise AssertionError("backend='cpu' ran without a module")
""",
        JAX_PLATFORMS="cpu",
    )


def test_a_broken_module_is_not_hidden():
    """A module that is there but cannot load is an error, not a slow path."""
    done = python(
        """
import importlib.abc, importlib.machinery, sys

class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name == "jax_transconv.ffi._cpu":
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        raise ImportError("libmissing.so.1: cannot open shared object file")
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Broken())
import jax_transconv
""",
        check=False,
    )
    assert done.returncode != 0
    assert "libmissing.so.1" in done.stderr


def stub(major: int, minor: int) -> str:
    """Code that puts a module in place which claims to be built for an FFI version."""
    return f"""
import sys, types
module = types.ModuleType("jax_transconv.ffi._cpu")
module.built_against = lambda: ({major}, {minor})
module.algorithms = dict
module.types = dict
def registrations():
    print("registered")
    return {{}}
module.registrations = registrations
sys.modules["jax_transconv.ffi._cpu"] = module
"""


def test_newer_headers_are_refused_at_import():
    """ENV-01: said at import, with both versions, and before anything is registered.

    Registered all the same, the handler would fail much later, or take all of JAX down.
    """
    major, minor = targets.runtime_ffi_version()
    done = python(f"{stub(major, minor + 1)}\nimport jax_transconv", check=False)
    assert done.returncode != 0
    last = done.stderr[done.stderr.index("ImportError") :]
    assert f"{major}.{minor + 1}" in last
    assert re.search(rf"\b{major}\.{minor}\b", last)
    assert "Resolution:" in last
    assert "_cpu" in last
    assert "registered" not in done.stdout


@pytest.mark.parametrize("older", [0, 1])
def test_older_headers_are_taken(older):
    major, minor = targets.runtime_ffi_version()
    done = python(f"{stub(major, max(minor - older, 0))}\nimport jax_transconv")
    assert "registered" in done.stdout


@pytest.mark.parametrize(
    ("built", "runtime", "legal"),
    [
        ((0, 3), (0, 3), True),
        ((0, 2), (0, 5), True),
        ((0, 4), (0, 3), False),
        ((1, 0), (0, 3), False),
        ((0, 3), (1, 0), False),
    ],
)
def test_version_rule(built, runtime, legal):
    if legal:
        targets.check_ffi_version("_cpu", built, runtime)
        return
    with pytest.raises(ImportError, match="Resolution:") as caught:
        targets.check_ffi_version("_cpu", built, runtime)
    for version in (built, runtime):
        assert f"{version[0]}.{version[1]}" in str(caught.value)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_modules_fit_this_jaxlib(backend):
    """The built modules are no newer than the floor allows, and name their handlers."""
    module = targets.module(backend)
    if module is None:
        assert backend == "cuda", "the CPU module is always built"
        pytest.skip("the CUDA module was not built")
    assert tuple(module.built_against()) <= targets.runtime_ffi_version()
    assert set(module.registrations()) == set(targets.TARGETS.values())
    assert set(targets.TARGETS.values()) == {
        f"jax_transconv.{name}.v1" for name in ("forward", "grad_input", "grad_weight")
    }


def test_import_order_does_not_matter():
    """Before or after JAX has devices."""
    python(f"import jax_transconv\n{CALL}")
    python(f"import jax; jax.devices()\nimport jax_transconv\n{CALL}")


def test_no_private_jax():
    """No module of JAX's private parts is imported anywhere."""
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "jax._src" not in text, path
        assert "jaxlib._" not in text, path


def test_public_names():
    assert set(jax_transconv.__all__) >= {"conv_transpose2d", "explain", "__version__"}
    for name in jax_transconv.__all__:
        assert hasattr(jax_transconv, name)
    assert (PACKAGE / "py.typed").exists()


def test_version():
    """The version of the metadata, where the package is installed."""
    try:
        installed = importlib.metadata.version("jax-transconv")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("running from the source tree")
    assert jax_transconv.__version__ == installed


def test_floor():
    """The suite runs on what the package says that it needs."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", jax.__version__)
    assert tuple(map(int, found.groups())) >= (0, 10, 2)
    assert sys.version_info >= (3, 11)


def test_doctests():
    """The examples in the docstrings of the public functions run."""
    import doctest

    from jax_transconv import api

    result = doctest.testmod(api)
    assert result.attempted > 0
    assert result.failed == 0
