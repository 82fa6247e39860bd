#!/usr/bin/env python3
"""Whether the parts of a method add up to the whole in a model's predictions, and which layers make it, as Markdown tables.

usage: sum_of_parts.py RESULTS.h5

The file is kvlab.results/1 of experiments/ablations/additivity_model.yaml: rows "METHOD", "METHOD, layer N" for every layer,
"METHOD, keys only", "METHOD, values only". dnll in nats, means over passages; in brackets the sum over the whole, from the lowest
passage to the highest. The second table has each layer alone.
"""

from __future__ import annotations

import sys

import numpy as np
from print_table import main
from results_io import open_results


def read(path: str) -> dict[str, np.ndarray]:
    """dnll by label, one a passage."""
    with open_results(path) as file:
        summary = file["summary"]
        labels, dnll = summary["label"].asstr()[:], summary["dnll"][:]
        order = np.argsort(summary["dataset"].asstr()[:], kind="stable")
    return {label: np.array([dnll[i] for i in order if labels[i] == label]) for label in dict.fromkeys(labels)}


def summed(parts: list[np.ndarray], whole: np.ndarray) -> str:
    total = np.sum(parts, axis=0)
    return f"{total.mean():.4f} ({(total / whole).min():.2f} to {(total / whole).max():.2f})"


def of_layers(rows: dict[str, np.ndarray], method: str) -> dict[int, np.ndarray]:
    start = f"{method}, layer "
    return {int(label.removeprefix(start)): values for label, values in rows.items() if label.startswith(start)}


def tables(rows: dict[str, np.ndarray]) -> list[str]:
    methods = [label for label in rows if ", " not in label]
    layers = {method: of_layers(rows, method) for method in methods}
    lines = ["| method | whole | sum of layers | keys | values | keys + values |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for method in methods:
        keys, values = rows[f"{method}, keys only"], rows[f"{method}, values only"]
        lines.append(f"| {method} | {rows[method].mean():.4f} | {summed(list(layers[method].values()), rows[method])} | {keys.mean():.4f} "
                     f"| {values.mean():.4f} | {summed([keys, values], rows[method])} |")  # fmt: skip
    lines += ["", "| layer | " + " | ".join(methods) + " |", "| --- |" + " ---: |" * len(methods)]
    for layer in sorted(layers[methods[0]]):
        lines.append(f"| {layer} | " + " | ".join(f"{layers[method][layer].mean():.4f}" for method in methods) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda path: tables(read(path))))
