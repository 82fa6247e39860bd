#!/usr/bin/env python3
"""Where the squared error of keys and values lies, as a Markdown table in percent.

usage: error_shares.py RESULTS.h5

The file is kvlab.results/1 with `measure: [tokens]`, as of experiments/ablations/error_shares.yaml. `tokens` is the share of
the worst 1% of tokens (all KV heads of a token together), `channel` that of the worst channel of each head (1 of d), `first 64`
and `last 256` those of these positions; means over passages and layers. Tokens that are never quantized have no error.
"""

from __future__ import annotations

import sys

import numpy as np
from print_table import main
from results_io import open_results

HEADINGS = ("tokens", "channel", "first 64", "last 256")


def shares(tokens: np.ndarray, channels: np.ndarray) -> tuple[float, ...]:
    """tokens [B, Hkv, T], NaN where a token is never quantized; channels [B, Hkv, blocks, d]: squared errors."""
    by_token = np.nan_to_num(tokens.sum(axis=1))  # [B, T]
    worst = np.sort(by_token, axis=1)[:, ::-1][:, : max(1, by_token.shape[1] // 100)]
    by_channel = channels.sum(axis=2)  # [B, Hkv, d]
    whole = by_token.sum()
    return (worst.sum() / whole, by_channel.max(axis=2).sum() / by_channel.sum(),
            by_token[:, :64].sum() / whole, by_token[:, -256:].sum() / whole)  # fmt: skip


def read(path: str) -> dict[tuple[str, str], list[float]]:
    """Means by side and label."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    with open_results(path) as file:
        for label, cell in zip(file["summary/label"].asstr()[:], file["summary/cell"].asstr()[:], strict=True):
            arrays = file["cells"][cell].get("tokens")
            for side in ("k", "v"):
                if arrays is None or f"{side}_se_channels" not in arrays or not np.nansum(arrays[f"{side}_se"]) > 0:
                    continue
                found.setdefault((side, label), []).append(
                    shares(arrays[f"{side}_se"][...], arrays[f"{side}_se_channels"][...]))
    return {key: list(np.mean(rows, axis=0)) for key, rows in found.items()}


def table(rows: dict[tuple[str, str], list[float]]) -> list[str]:
    sides = {"k": "keys", "v": "values"}
    lines = ["| label | " + " | ".join(f"{side}: {name}" for side in sides.values() for name in HEADINGS) + " |",
             "| --- |" + " ---: |" * 2 * len(HEADINGS)]  # fmt: skip
    for label in dict.fromkeys(label for _, label in rows):
        numbers = [f"{100 * share:.1f}" for side in sides for share in rows.get((side, label), [float("nan")] * 4)]
        lines.append(f"| {label} | " + " | ".join(numbers).replace("nan", "–") + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda path: table(read(path))))
