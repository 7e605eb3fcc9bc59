"""Makes the benchmarks importable, which are no part of the installed package."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
