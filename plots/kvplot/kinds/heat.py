"""Two axes of a sweep, by default group size by window, one map a label."""

from __future__ import annotations

import numpy as np
from kvlab_results import Refused, Results

from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Heat, Panel

KIND = "heat"
TITLE = "Error by group and window"
NEEDS = "a sweep over group and window.recent, as experiments/sweeps/group_window.yaml"


def figure(results: Results, choice: ch.Choice) -> Figure:
    value = ch.metric(results, choice.value, ch.ERRORS, "the error that this kind draws", "measure: [attention] makes it")
    columns, rows = "group", choice.x or "window.recent"
    ch.apart(rows, columns, KIND)
    for axis in (columns, rows):
        if axis not in results.axes:
            raise Refused(f"{results.path}: no sweep varies {axis}, which {KIND} draws (swept: {', '.join(results.axes) or 'nothing'}); "
                          "experiments/sweeps/group_window.yaml varies group and window.recent")
    found, without = ch.without(ch.rows(results, choice), value)
    found = found[(found[value] > 0) & np.isfinite(found[value])]
    if found.empty:
        raise Refused(f"{results.path}: no row has a finite {value} above 0, which {KIND} draws")
    labels, left_out = ch.at_most(ch.in_order(found))
    found = found[found["label"].isin(labels)]
    across, down = sorted(found[columns].unique()), sorted(found[rows].unique(), reverse=True)
    means = found.groupby(["label", rows, columns])[value].mean().unstack(columns)
    others = [axis for axis in results.axes if axis not in (columns, rows)]
    panels = [Panel(Axis(f"group size ({columns})"), Axis(rows),
                    [Heat([f"{g:g}" for g in across], [f"{r:g}" for r in down],
                          means.loc[label].reindex(index=down, columns=across).to_numpy(), numbers=True)], label)
              for label in labels]
    return Figure(KIND, TITLE, panels, ch.sentence(ch.pooled(found, others), left_out, without, "empty: no number at this point"),
                  columns=3, height=0.8, colour=Axis(ch.name_of(value, results), log=True))
