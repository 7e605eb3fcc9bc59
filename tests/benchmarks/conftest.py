"""Makes the benchmarks importable, which are no part of the installed package."""

import pathlib
import sys

# Last, or the checkout would shadow the installed package and its native modules.
sys.path.append(str(pathlib.Path(__file__).parents[2]))
