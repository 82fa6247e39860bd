#!/usr/bin/env python3
"""Each row's distance to the rate-distortion limit of normal data, as a Markdown table, least waste first.

usage: wasted_bits.py RESULTS.h5

The file is kvlab.results/1 of experiments/ablations/gaussian_limit.yaml. `held` is bits_per_element_hist; `needed` is the
mean over both sides of ½·log2(1/nmse), what an ideal code takes for that error (Shannon 1959); `wasted` is their
difference. Rotations, bases and codebooks, which all tokens share, are in none of them.
"""

from __future__ import annotations

import argparse
import math
import sys

import h5py
import numpy as np


def needed(k_nmse: float, v_nmse: float) -> float:
    """Bits an element, mean of keys and values."""
    return -0.25 * math.log2(k_nmse * v_nmse)


def read(path: str) -> dict[str, tuple[float, float, float]]:
    """Means by label: bits held, relative errors of keys and values."""
    with h5py.File(path) as file:
        summary = file["summary"]
        labels = summary["label"].asstr()[:]
        columns = [summary[name][:] for name in ("bits_per_element_hist", "k_nmse", "v_nmse")]
    found = {}
    for label in dict.fromkeys(labels):
        means = [float(np.mean(column[labels == label])) for column in columns]
        if all(math.isfinite(mean) and mean > 0 for mean in means):
            found[label] = tuple(means)
    return found


def table(rows: dict[str, tuple[float, float, float]]) -> list[str]:
    lines = ["| label | held | k_nmse | v_nmse | needed | wasted |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for label, (held, k, v) in sorted(rows.items(), key=lambda row: row[1][0] - needed(*row[1][1:])):
        lines.append(f"| {label} | {held:.3f} | {k:.4g} | {v:.4g} | {needed(k, v):.3f} | {held - needed(k, v):.3f} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results")
    print("\n".join(table(read(parser.parse_args().results))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
