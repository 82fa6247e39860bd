"""Where an error sits: a map of channels by blocks of 32 tokens, one a label."""

from __future__ import annotations

import numpy as np
from kvlab_results import Results

from kvplot import by_token
from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Heat, Panel

KIND = "channels"
TITLE = "Error by channel and token"
NEEDS = by_token.NEEDS
BLOCK = 32  # tokens of a row of k_se_channels


def figure(results: Results, choice: ch.Choice) -> Figure:
    array = f"{choice.side[0]}_se_channels"
    cells, point = by_token.cells(results, choice, KIND, array, f"{choice.side[0]}_se")
    cells, where = by_token.one_layer(cells)
    labels, left_out = ch.at_most(by_token.labels(cells))
    panels = []
    for label in labels:
        cell = next(cell for cell in cells if cell.label == label)
        errors = cell.arrays[array].mean(axis=0)  # [Hkv, blocks, d]
        heads, blocks, size = errors.shape
        z = errors.transpose(0, 2, 1).reshape(heads * size, blocks) / BLOCK
        begin = np.flatnonzero(~np.isnan(cell.arrays[f"{choice.side[0]}_se"][0, 0]))[0]
        panels.append(Panel(Axis("token"), Axis("channel of each head"),
                            [Heat([str(begin + BLOCK * b) for b in range(blocks)],
                                  [f"{h}:{c}" for h in range(heads) for c in range(size)], np.where((z > 0) & np.isfinite(z), z, np.nan))], label))
    return Figure(KIND, TITLE, by_token.above_zero(results, KIND, panels),
                  ch.sentence(where, point, left_out, f"blocks of {BLOCK} tokens"), columns=3, height=1.0,
                  colour=Axis(f"squared error of {choice.side}s", log=True))
