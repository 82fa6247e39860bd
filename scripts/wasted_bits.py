#!/usr/bin/env python3
"""Each row's distance to the rate-distortion limit, as a Markdown table, least waste first.

usage: wasted_bits.py RESULTS.h5

The file is kvlab.results/1 of experiments/ablations/gaussian_limit.yaml. `held` is bits_per_element_hist; `needed` is the
mean over both sides of ½·log2(1/nmse), what an ideal code takes for that error (Shannon 1959); `wasted` is their
difference. Where the file has k_bits_needed, as of experiments/ablations/water_filling.yaml, that is what is needed: keys alone, by
reverse water-filling with the covariances of the data. Rotations, bases and codebooks, which all tokens share, are in none of them.
"""

from __future__ import annotations

import math
import sys

import numpy as np
from print_table import main
from results_io import open_results


def needed(k_nmse: float, v_nmse: float) -> float:
    """Bits an element, mean of keys and values."""
    return -0.25 * math.log2(k_nmse * v_nmse)


def read(path: str) -> tuple[list[str], dict[str, list[float]]]:
    """Names of the columns, and by label bits held, the error, bits needed."""
    with open_results(path) as file:
        summary = file["summary"]
        labels = summary["label"].asstr()[:]
        is_real = "k_bits_needed" in summary and np.isfinite(summary["k_bits_needed"][:]).any()
        errors = ["k_residual_trace", "k_bits_needed"] if is_real else ["k_nmse", "v_nmse"]
        columns = [summary[name][:] for name in ("bits_per_element_hist", *errors)]
    found = {}
    for label in dict.fromkeys(labels):
        held, first, second = [float(np.mean(column[labels == label])) for column in columns]
        if is_real:
            row = [held, first, second]
        elif first > 0 and second > 0:
            row = [held, first, second, needed(first, second)]
        else:
            continue
        if all(math.isfinite(number) and number > 0 for number in row):
            found[label] = row
    return ["held", "k_residual_trace", "needed"] if is_real else ["held", "k_nmse", "v_nmse", "needed"], found


def table(names: list[str], rows: dict[str, list[float]]) -> list[str]:
    lines = ["| label | " + " | ".join([*names, "wasted"]) + " |", "| --- |" + " ---: |" * (len(names) + 1)]
    for label, row in sorted(rows.items(), key=lambda one: one[1][0] - one[1][-1]):
        errors = [f"{error:.4g}" for error in row[1:-1]]
        lines.append("| " + " | ".join([label, f"{row[0]:.3f}", *errors, f"{row[-1]:.3f}", f"{row[0] - row[-1]:.3f}"]) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda path: table(*read(path))))
