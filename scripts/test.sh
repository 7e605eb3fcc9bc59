#!/usr/bin/env bash
# Installs the package into a virtual environment and runs its tests:
#   bash scripts/test.sh [arguments of pytest]
# scripts/setup.sh lists the environment variables. WORKERS is the number of test processes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh test
# These were just installed: a test that skips for want of them is a failure.
export TRANSCONV_REQUIRE=${TRANSCONV_REQUIRE-cpu,torch,flax,equinox,haiku}
exec pytest --numprocesses "${WORKERS:-2}" "$@"
