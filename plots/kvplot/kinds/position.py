"""Error of the attention output by the position of the query."""

from __future__ import annotations

import numpy as np
from kvlab_results import Refused, Results

from kvplot import by_token
from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "position"
TITLE = "Attention error by position"
NEEDS = by_token.NEEDS


def figure(results: Results, choice: ch.Choice) -> Figure:
    cells, point = by_token.cells(results, choice, KIND, "out_se", "out_ss", "position")
    cells = [cell for cell in cells if "position" in cell.arrays and cell.arrays["out_se"].any()]
    if not cells:
        raise Refused(f"{results.path} holds no positions of probes with an error: run the experiment once more by "
                         "kvlab run --rerun")
    styles = ch.styles(results)
    marks = []
    for label in by_token.labels(cells):
        mine = [cell for cell in cells if cell.label == label]
        positions = np.unique(np.concatenate([cell.arrays["position"] for cell in mine]))
        # A cell's error at a probe: over sequences and heads together.
        errors = [dict(zip(cell.arrays["position"], np.sqrt(cell.arrays["out_se"].sum(axis=(0, 1))
                                                            / cell.arrays["out_ss"].sum(axis=(0, 1))), strict=True))
                  for cell in mine]
        mean = [float(np.mean([error[p] for error in errors if p in error])) for p in positions]
        marks.append(Series(label, list(positions), mean, styles[label]))
    return Figure(KIND, TITLE, [Panel(Axis("position of the query"), Axis("‖Ô − O‖ / ‖O‖ over heads", log=True), marks)],
                  ch.sentence(by_token.over(cells), point))
