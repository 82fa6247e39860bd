"""Error against bits: each label and sweep point is a point, and a line joins those that nothing beats in both."""

from __future__ import annotations

import numpy as np
import pandas as pd
from kvlab_results import Refused, Results

from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "pareto"
TITLE = "Error against bits"
NEEDS = "measure: [attention, memory]"


def figure(results: Results, choice: ch.Choice) -> Figure:
    x = ch.metric(results, choice.x, ("bits_at_32k", "bits_per_element"), "the x axis of this kind",
                  "measure: [memory] makes it")
    return against(results, choice, x, KIND, TITLE)


def against(results: Results, choice: ch.Choice, x: str, kind: str, title: str) -> Figure:
    y = ch.metric(results, choice.value, ch.ERRORS, "the error that this kind draws",
                  "measure: [attention] makes wo_rel, out_rel and attn_kl, [error] k_nmse")
    ch.apart(x, y, kind)
    found, left_out = ch.without(ch.rows(results, choice), x, y)
    points = found.groupby(["label", *results.axes], sort=False, dropna=False)[[x, y]].mean().reset_index()
    endless = points[~np.isfinite(points[[x, y]]).all(axis=1)]
    points = points.drop(endless.index)
    exact = points[points[y] <= 0]
    points = points[points[y] > 0]  # the axis is logarithmic
    if points.empty:
        raise Refused(f"{results.path}: no row has both {x} and a finite {y} above 0, which {kind} draws")
    styles = ch.styles(results)
    marks = [_front(points, x, y)]
    for label in [name for name in styles if name in set(points["label"])]:
        mine = points[points["label"] == label]
        hover = [f"{label}{_point(row, results.axes)}" for _, row in mine.iterrows()]
        marks.append(Series(label, list(mine[x]), list(mine[y]), styles[label], line="none", hover=hover))
    no_error = ch.listed("without error, not drawn", exact["label"].unique())
    infinite = ch.listed("infinite, not drawn", endless["label"].unique())
    panel = Panel(Axis(ch.name_of(x, results), log=x.endswith("_us")), Axis(ch.name_of(y, results), log=True), marks)
    return Figure(kind, title, [panel], ch.sentence(ch.pooled(found), "lower left is better", no_error, infinite, left_out))


def _front(points: pd.DataFrame, x: str, y: str) -> Series:
    """The points that no other one beats in x and y, as steps."""
    ordered = points.sort_values([x, y])
    best = ordered[y].cummin()
    front = ordered[(ordered[y] == best) & ~best.duplicated()]
    return Series("Pareto front", list(front[x]), list(front[y]), None, line="steps", markers=False)


def _point(row: pd.Series, axes: list[str]) -> str:
    parts = [f"{axis} {row[axis]:g}" if isinstance(row[axis], (int, float, np.number)) else f"{axis} {row[axis]}"
             for axis in axes]
    return f": {', '.join(parts)}" if parts else ""
