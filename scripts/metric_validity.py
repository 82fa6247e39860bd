#!/usr/bin/env python3
"""Rank correlations of tensor metrics with what a cache does to a model's predictions, as a Markdown table.

usage: metric_validity.py MODEL.h5 SAMPLES.h5 [--target dnll_tail] [--hard 0.2]

Both files are kvlab.results/1 of the same methods (experiments/metric_validity.yaml and metric_validity_samples.yaml). A
point is a method. Intervals (95%) resample methods, 2,000 times. A metric is averaged over layers; the last column is the
best single layer. Methods marked * learn a rotation on a loss of attention outputs, which such metrics see again.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
from results_io import open_results

METRICS = ("k_nmse", "v_nmse", "logit_mse", "attn_kl", "attn_top1", "out_rel", "out_rel_k", "out_rel_v", "out_cos",
           "wo_rel", "wo_rel_k", "wo_rel_v")  # fmt: skip
LARGER_IS_BETTER = {"attn_top1", "out_cos"}
RESAMPLES = 2000

Values = dict[str, dict[int, list[float]]]  # label -> layer -> a value a dataset


def read(path: str, metric: str) -> Values:
    found: Values = {}
    with open_results(path) as file:
        summary = file["summary"]
        if metric not in summary:
            return {}
        rows = zip(summary["label"].asstr()[:], summary["layer"][:], summary[metric][:], strict=True)
        for label, layer, value in rows:
            if np.isfinite(value):
                found.setdefault(label, {}).setdefault(int(layer), []).append(float(value))
    return found


def learned(path: str) -> set[str]:
    """Labels of methods that learn a rotation."""
    with open_results(path) as file:
        configs = (json.loads(cell["config"].asstr()[()]) for cell in file["cells"].values())
        return {
            config["method"]["label"]
            for config in configs
            if any(config["method"].get(side, {}).get("rotate") == "learned" for side in ("key", "value"))
        }


def ranks(x: np.ndarray) -> np.ndarray:
    """From 0; equal values share their mean rank."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    a, b = ranks(x), ranks(y)
    a, b = a - a.mean(), b - b.mean()
    size = np.sqrt((a**2).sum() * (b**2).sum())
    return float((a * b).sum() / size) if size > 0 else float("nan")


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Tau-b."""
    above = np.triu_indices(len(x), 1)
    a, b = np.sign(x[:, None] - x)[above], np.sign(y[:, None] - y)[above]
    size = np.sqrt((a != 0).sum() * (b != 0).sum())
    return float((a * b).sum() / size) if size > 0 else float("nan")


def interval(x: np.ndarray, y: np.ndarray, statistic) -> str:
    draw = np.random.default_rng(20260519)
    drawn = [statistic(x[i], y[i]) for i in draw.integers(0, len(x), (RESAMPLES, len(x)))]
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return f"{statistic(x, y):.3f} [{low:.2f}, {high:.2f}]"


def table(model: Values, samples: str, labels: list[str]) -> list[str]:
    lines = ["| metric | Spearman | Kendall | best layer (Spearman) |", "|---|---:|---:|---:|"]
    y = np.array([np.mean(model[label][-1]) for label in labels])
    for metric in METRICS:
        found = read(samples, metric)
        if any(label not in found for label in labels):
            continue
        sign = -1 if metric in LARGER_IS_BETTER else 1
        layers = sorted(set.intersection(*(set(found[label]) for label in labels)))
        by_layer = {
            layer: sign * np.array([np.mean(found[label][layer]) for label in labels]) for layer in layers
        }
        x = np.mean(list(by_layer.values()), axis=0)
        best = max(layers, key=lambda layer: np.nan_to_num(spearman(by_layer[layer], y), nan=-1))
        lines.append(f"| `{metric}` | {interval(x, y, spearman)} | {interval(x, y, kendall)} "
                     f"| {best}: {spearman(by_layer[best], y):.3f} |")  # fmt: skip
    return lines


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("samples")
    parser.add_argument("--target", default="dnll_tail")
    parser.add_argument("--hard", type=float, default=0.2, help="a second table of methods with a target below this")
    options = parser.parse_args(argv)
    model = read(options.model, options.target)
    tensors = read(options.samples, "wo_rel")
    labels = [label for label in model if label in tensors]
    if len(labels) < 4:
        print(f"metric_validity.py: the files share {len(labels)} complete methods, at least 4 are needed", file=sys.stderr)
        return 2
    marked = learned(options.model)
    means = {label: np.mean(model[label][-1]) for label in labels}
    print(f"{len(labels)} methods, rank correlation with `{options.target}`:\n")
    print("\n".join(table(model, options.samples, labels)))
    hard = [label for label in labels if means[label] < options.hard]
    if len(hard) >= 4:
        print(f"\n{len(hard)} methods with `{options.target}` below {options.hard}:\n")
        print("\n".join(table(model, options.samples, hard)))
    print(f"\n`{options.target}`: " + ", ".join(
        f"{label}{'*' if label in marked else ''} {means[label]:.3f}" for label in sorted(labels, key=means.get)))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
