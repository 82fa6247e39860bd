"""Relative error by token for each head of each layer, one map a label."""

from __future__ import annotations

import warnings

import numpy as np
from kvlab_results import Results

from kvplot import by_token
from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Heat, Panel

KIND = "tokens"
TITLE = "Error by token"
NEEDS = by_token.NEEDS
MOST = 128  # columns; longer samples are averaged over stretches of tokens


def figure(results: Results, choice: ch.Choice) -> Figure:
    side = choice.side[0]
    cells, point = by_token.cells(results, choice, KIND, f"{side}_se", f"{side}_norm")
    cells = [cell for cell in cells if cell.dataset == cells[0].dataset]
    labels, left_out = ch.at_most(by_token.labels(cells))
    count = cells[0].arrays[f"{side}_se"].shape[-1]
    stretch = -(-count // MOST)
    panels = []
    for label in labels:
        mine = [cell for cell in cells if cell.label == label]
        with np.errstate(divide="ignore", invalid="ignore"):  # a token of norm zero has no relative error
            z = [_stretches(cell.arrays[f"{side}_se"] / cell.arrays[f"{side}_norm"] ** 2, stretch) for cell in mine]
        names = [f"{cell.layer}:{head}" for cell, part in zip(mine, z, strict=True) for head in range(len(part))]
        joined = np.concatenate(z)
        panels.append(Panel(Axis("token"), Axis("layer and KV head"),
                            [Heat([str(stretch * i) for i in range(joined.shape[1])], names,
                                  np.where((joined > 0) & np.isfinite(joined), joined, np.nan))], label))
    means = f"means of {stretch} tokens" if stretch > 1 else ""
    return Figure(KIND, TITLE, by_token.above_zero(results, KIND, panels), ch.sentence(cells[0].dataset, point, left_out, means),
                  columns=1, height=0.3, colour=Axis(f"‖error‖² / ‖{side}‖²", log=True))


def _stretches(errors: np.ndarray, stretch: int) -> np.ndarray:
    """[B, Hkv, T] → [Hkv, stretches]: means over sequences and the tokens that are quantized."""
    pad = -errors.shape[-1] % stretch
    padded = np.pad(errors, ((0, 0), (0, 0), (0, pad)), constant_values=np.nan)
    parts = padded.reshape(*errors.shape[:2], -1, stretch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a stretch of windows alone has no mean
        return np.nanmean(parts, axis=(0, 3))
