"""Reads kvlab.results/1 into pandas frames.

    import kvlab_results
    results = kvlab_results.read("results/demo.h5")
    results.summary.groupby("label")["wo_rel"].mean()

`Results` has the frames `summary`, `heads`, `timings` and `provenance`, and what a cell stores beside numbers.
"""

from kvlab_results.errors import Refused
from kvlab_results.results import Results, read

__all__ = ["Refused", "Results", "read"]
