"""Time of a decoding step by context, with the time that reading the same bytes takes: the roofline."""

from __future__ import annotations

import pandas as pd
from kvlab_results import Results

from kvplot import choice as ch
from kvplot import timing
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "latency"
TITLE = "Latency by context"
NEEDS = "decode_us at several tokens: experiments/bench/decode_context.yaml or kvlab_bench"


def figure(results: Results, choice: ch.Choice) -> Figure:
    value, found = timing.times(results, choice, "tokens", "experiments/bench/decode_context.yaml")
    parts, left_out = timing.panels(results, found, "tokens")
    bandwidth = choice.bandwidth or _bandwidth(found)
    styles = ch.styles(results)
    panels = []
    for title, rows in parts:
        marks = []
        for label in ch.in_order(rows):
            mine = rows[rows["label"] == label].groupby("tokens")[[value, "bytes"]].mean().reset_index()
            marks.append(Series(label, list(mine["tokens"]), list(mine[value]), styles[label]))
            if bandwidth and mine["bytes"].notna().all() and not label.startswith("read"):
                marks.append(Series(f"{label} at the read bandwidth", list(mine["tokens"]),
                                    list(mine["bytes"] / bandwidth * 1e6), styles[label], "dashed", False, legend=False))
        if bandwidth:
            marks.append(Series("the same bytes at the read bandwidth", [], [], None, "dashed", False))
        ticks = sorted(rows["tokens"].unique())
        panels.append(Panel(Axis("tokens", True, ticks), Axis(ch.name_of(value, results), True), marks, title))
    roofline = (f"dashed: the same bytes at {bandwidth / 1e9:.0f} GB/s, the read bandwidth" if bandwidth else
                "no roofline: the file holds no read bandwidth, which kvlab_bench measures and --bandwidth gives")
    return Figure(KIND, TITLE, panels, ch.sentence(left_out, roofline), columns=2)


def _bandwidth(found: pd.DataFrame) -> float | None:
    """Bytes a second that reading reached in the same run; kvlab_bench stores each row's share of it."""
    if "of_read" not in found:
        return None
    known = found[found["of_read"] > 0]
    return float((known["bytes_per_second"] / known["of_read"]).median()) if len(known) else None
