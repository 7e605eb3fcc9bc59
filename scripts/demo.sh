#!/usr/bin/env bash
# Installs the package into a virtual environment and trains the super-resolution demo:
#   bash scripts/demo.sh [--out FILE] [--epochs N] [--seconds LIMIT] [--backend auto]
# scripts/setup.sh lists the environment variables.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/setup.sh demo
exec python examples/fsrcnn.py "$@"
