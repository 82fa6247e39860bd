"""Time of a decoding step and tokens a second by batch."""

from __future__ import annotations

from kvlab_results import Results

from kvplot import choice as ch
from kvplot import timing
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "batch"
TITLE = "Batch scaling"
NEEDS = "decode_us at several batches: experiments/bench/decode_batch.yaml or kvlab_bench"


def figure(results: Results, choice: ch.Choice) -> Figure:
    value, found = timing.times(results, choice, "batch", "experiments/bench/decode_batch.yaml")
    parts, left_out = timing.panels(results, found, "batch", ch.MOST_PANELS // 2)
    styles = ch.styles(results)
    panels = []
    for title, rows in parts:
        times, rates = [], []
        for label in ch.in_order(rows):
            mine = rows[rows["label"] == label].groupby("batch")[value].mean()
            batches = list(mine.index)
            times.append(Series(label, batches, list(mine), styles[label]))
            rates.append(Series(label, batches, [b / us * 1e6 for b, us in mine.items()], styles[label], legend=False))
        x = Axis("batch", True, sorted(rows["batch"].unique()))
        panels.append(Panel(x, Axis(ch.name_of(value, results), True), times, title))
        rate = "tokens a second" + (", one layer" if value == "decode_us" else "")
        panels.append(Panel(x, Axis(rate, True), rates, title))
    return Figure(KIND, TITLE, panels, left_out, columns=2)
