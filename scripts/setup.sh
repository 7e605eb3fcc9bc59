# Sourced by the other scripts: `. scripts/setup.sh EXTRAS` builds and installs the package
# with these extras into a virtual environment, and puts that first on PATH.
#
#   VENV    the environment, made if it is not there (default .venv)
#   PYTHON  the interpreter to make it with (default python3)
#   JAX     what to install JAX as; "jax[cuda13]" or "jax[cuda12]" for a GPU (default jax)
#   PACKAGE  what to install: this tree (default .), a wheel, or jax_transconv for the one that
#            is installed already, which leaves only what the extras add
#   TRANSCONV_CUDA  build the CUDA module: AUTO (if nvcc is there), ON or OFF (default AUTO)

PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}
PACKAGE=${PACKAGE:-.}
if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "Python 3.11 or newer is needed, and $PYTHON is not: set PYTHON, e.g. PYTHON=python3.13" >&2
  exit 1
fi
if [ ! -x "$VENV/bin/python" ]; then
  "$PYTHON" -m venv "$VENV"
fi
PATH=$(cd "$VENV" && pwd)/bin:$PATH
export PATH
# The package under test is the installed one, not the source tree, which has no modules.
export PYTHONSAFEPATH=1
echo "Installing jax_transconv[$1] and what it needs into $VENV; a few minutes at first." >&2
python -m pip install -qq --constraint tests/constraints.txt "${PACKAGE}[$1]" "${JAX:-jax}"
