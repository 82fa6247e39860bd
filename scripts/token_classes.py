#!/usr/bin/env python3
"""The squared error of keys by class of token, as a Markdown table.

usage: token_classes.py RESULTS.h5

The file is kvlab.results/1 with `measure: [tokens]`, as of experiments/ablations/token_classes.yaml. A token is `small` where its
norm, over all KV heads, is below half of the data set's 95th percentile (a low norm, the other modality), else `normal`. Shown
is the error a token and head, Σ_c e², and in brackets that over the class's own Σ_c k²; means over seeds and layers. Tokens
that are never quantized do not count.
"""

from __future__ import annotations

import sys

import numpy as np
from print_table import main
from results_io import open_results

CLASSES = ("normal", "small")
Errors = dict[tuple[str, str, str], list[tuple[float, float]]]


def by_class(errors: np.ndarray, norms: np.ndarray) -> dict[str, tuple[float, float]]:
    """errors [B, Hkv, T], squared, NaN where a token is never quantized; norms [B, Hkv, T]: error a token, relative error."""
    whole = np.sqrt((norms**2).sum(axis=1))  # [B, T]
    small = np.broadcast_to((whole < np.quantile(whole, 0.95) / 2)[:, None], errors.shape)
    quantized = ~np.isnan(errors)
    found = {}
    for name, members in zip(CLASSES, (quantized & ~small, quantized & small), strict=True):
        if members.any():
            found[name] = (errors[members].mean(), errors[members].sum() / (norms[members] ** 2).sum())
    return found


def read(path: str) -> Errors:
    """By dataset, class and label."""
    found: Errors = {}
    with open_results(path) as file:
        columns = [file["summary"][name].asstr()[:] for name in ("dataset", "label", "cell")]
        for dataset, label, cell in zip(*columns, strict=True):
            tokens = file["cells"][cell]["tokens"]
            for name, pair in by_class(tokens["k_se"][...], tokens["k_norm"][...]).items():
                found.setdefault((dataset, name, label), []).append(pair)
    return found


def table(found: Errors) -> list[str]:
    labels = list(dict.fromkeys(label for _, _, label in found))
    lines = ["| dataset | tokens | " + " | ".join(labels) + " |", "| --- | --- |" + " ---: |" * len(labels)]
    for dataset in dict.fromkeys(dataset for dataset, _, _ in found):
        for name in CLASSES:
            if (dataset, name, labels[0]) in found:
                means = [np.mean(found[dataset, name, label], axis=0) for label in labels]
                cells = " | ".join(f"{error:.4g} ({100 * share:.1f}%)" for error, share in means)
                lines.append(f"| {dataset} | {name} | {cells} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda path: table(read(path))))
