#!/usr/bin/env bash
# Builds the source distribution and, from that, the wheel; prints their sizes; installs the
# wheel alone into a new virtual environment, and runs its command line from another directory:
#   bash scripts/wheel.sh
#
#   DIST    where the two files go (default dist)
#   VENV    the new environment (default a temporary one)
#   PYTHON  the interpreter to build for (default python3)
#   TRANSCONV_CUDA  build the CUDA module: AUTO (if nvcc is there), ON or OFF (default AUTO)
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DIST=${DIST:-dist}
VENV=${VENV:-$work/venv}
PYTHON=${PYTHON:-python3}

"$PYTHON" -m venv "$work/tools"
"$work/tools/bin/pip" install -qq build
"$work/tools/bin/python" -m build --outdir "$work/dist" . >"$work/log" 2>&1 || {
  tail -n 50 "$work/log" >&2
  exit 1
}
mkdir -p "$DIST"
cp "$work"/dist/* "$DIST"
"$PYTHON" - "$work"/dist/* <<'PYTHON'
import os, sys, zipfile

for path in sys.argv[1:]:
    print(f"{os.path.getsize(path) / 1e6:7.2f} MB  {os.path.basename(path)}")
    for entry in zipfile.ZipFile(path).infolist() if path.endswith(".whl") else ():
        if entry.filename.endswith(".so"):
            print(f"{entry.compress_size / 1e6:7.2f} MB    of it {entry.filename}")
PYTHON

"$PYTHON" -m venv --clear "$VENV"
VENV=$(cd "$VENV" && pwd)
"$VENV/bin/pip" install -qq "$work"/dist/*.whl
cd "$work"
"$VENV/bin/jax-transconv" info
"$VENV/bin/jax-transconv" check
