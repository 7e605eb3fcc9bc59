#!/usr/bin/env bash
# Checks format, lint and types with the tools of the `dev` extra, which must be on PATH.
set -euo pipefail
cd "$(dirname "$0")/.."
ruff format --check .
ruff check .
find cc -name '*.h' -o -name '*.cc' -o -name '*.cuh' -o -name '*.cu' |
  xargs --no-run-if-empty clang-format --dry-run -Werror
pyright
