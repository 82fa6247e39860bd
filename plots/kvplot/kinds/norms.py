"""Norms of captured keys by token, a box over heads each, as OScaR's figures of token norm imbalance have them."""

from __future__ import annotations

import numpy as np
from kvlab_results import Results

from kvplot import by_token
from kvplot import choice as ch
from kvplot.figure import Axis, Boxes, Figure, Panel

KIND = "norms"
TITLE = "Norms by token"
NEEDS = by_token.NEEDS
TOKENS = 48  # the first ones: sinks are there


def figure(results: Results, choice: ch.Choice) -> Figure:
    array = f"{choice.side[0]}_norm"
    # They are of the capture, so that any label's cell has them.
    cells, point = by_token.cells(results, choice, KIND, array)
    first_of = {(cell.dataset, cell.layer): cell for cell in reversed(cells)}
    shown, left_out = ch.at_most(list(dict.fromkeys((c.dataset, c.layer) for c in cells)), "samples", "--where")
    panels = []
    for dataset, layer in shown:
        norms = first_of[dataset, layer].arrays[array][..., :TOKENS]  # [B, Hkv, n]
        norms = norms.reshape(-1, norms.shape[-1])
        low, q1, median, q3, high = np.quantile(norms, [0, 0.25, 0.5, 0.75, 1], axis=0)
        panels.append(Panel(Axis("token"), Axis(f"norm of {choice.side}s"),
                            [Boxes(list(range(norms.shape[1])), low, q1, median, q3, high)], f"{dataset}, layer {layer}"))
    heads = first_of[shown[0]].arrays[array].shape[1]
    return Figure(KIND, TITLE, panels, ch.sentence(f"a box over {heads} KV heads, whiskers at the extremes", left_out, point),
                  columns=1, height=0.3)
