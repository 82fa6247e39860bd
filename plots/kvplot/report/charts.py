"""A figure as the data and layout of plotly's script, without colours of the page: report.js adds these."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvplot import palette
from kvplot.choice import sentence
from kvplot.figure import Axis, Boxes, Figure, Heat, Panel, Series, short
from kvplot.report.numbers import rounded

PANEL = 340  # pixels, the least height of a panel
_ROW = 20  # pixels of a name in a list of names
_LEGEND_LINE, _LEGEND_COLUMNS = 22, 4  # pixels of a line of the legend, and names in it at least
_MOST = 60  # lines of a panel, names of an axis: plotly takes tens of seconds for hundreds
_DASHES = {"solid": "solid", "dashed": "dash", "steps": "solid", "none": "solid"}


def chart(figure: Figure) -> dict[str, Any]:
    """Keys `data` and `layout`; `caption`, the figure's and what is not as in the picture of a file."""
    has_legend = max(len(panel.marks) for panel in figure.panels) <= _MOST
    columns = min(figure.columns, 2, len(figure.panels))
    lines = math.ceil(len(figure.panels) / columns)
    rows = max(len(panel.y.names or ()) for panel in figure.panels) if has_legend else 0
    panel_height = 60 + _ROW * rows if rows else max(200, PANEL * min(1.0, figure.height * 1.4))
    names = {mark.name for panel in figure.panels for mark in panel.marks if isinstance(mark, Series) and mark.legend}
    legend_lines = math.ceil(len(names) / _LEGEND_COLUMNS) if has_legend else 0
    layout: dict[str, Any] = {
        "grid": {"rows": lines, "columns": columns, "pattern": "independent", "ygap": 0.35 if lines > 1 else 0.1, "xgap": 0.2},
        "height": round(lines * panel_height + 120 + _LEGEND_LINE * legend_lines), "annotations": [], "margin": {"l": 60, "r": 20, "t": 40, "b": 60},
        "legend": {"orientation": "h", "y": -80 / (lines * panel_height), "yanchor": "top", "maxheight": 1.0},
        "hovermode": "closest", "modebar": {"bgcolor": "rgba(0,0,0,0)"},
    }
    data: list[dict[str, Any]] = []
    named: set[str] = set()
    for place, panel in enumerate(figure.panels):
        at = str(place + 1) if place else ""
        for mark in panel.marks if has_legend else _joined(panel.marks):
            trace = _trace(mark, figure.colour.log)
            if isinstance(mark, Series):
                trace["showlegend"] = mark.legend and mark.name not in named and legend_lines > 0
                named.add(mark.name)
            data.append(trace | {"xaxis": f"x{at}", "yaxis": f"y{at}"})
        layout[f"xaxis{at}"] = _axis(panel.x, panel)
        layout[f"yaxis{at}"] = _axis(panel.y, panel) | ({"autorange": "reversed"} if _is_map(panel) else {})
        if panel.title:
            layout["annotations"].append({"text": _text(panel.title), "xref": f"x{at} domain", "yref": f"y{at} domain", "x": 0.5,
                                          "y": 1, "yanchor": "bottom", "showarrow": False})
    if any(_is_map(panel) for panel in figure.panels):
        layout["coloraxis"] = _colours(figure)
    caption = sentence(figure.caption, "" if has_legend else f"more than {_MOST} lines, so neither legend nor names: points say whose they are")
    return {"data": data, "layout": layout, "caption": caption}


def _joined(marks: Sequence[Series]) -> list[Series]:
    """Series of one colour and form as one, with a gap behind each."""
    alike: dict[tuple[Any, ...], list[Series]] = {}
    for mark in marks:
        colour = None if mark.style is None else mark.style % len(palette.COLOURS)
        alike.setdefault((colour, mark.line, mark.markers, mark.along, mark.ends is None), []).append(mark)
    return [Series(first.name, _gapped(*(mark.x for mark in same)), _gapped(*(mark.y for mark in same)), first.style, first.line,
                   first.markers, [text for mark in same for text in [*(mark.hover or [mark.name] * len(mark.x)), ""]],
                   first.ends and tuple(_gapped(*(mark.ends[end] for mark in same if mark.ends)) for end in (0, 1)), first.along)
            for same in alike.values() for first in same[:1]]


def _gapped(*parts: Sequence[float]) -> list[float]:
    return [value for part in parts for value in [*part, math.nan]]


def _is_map(panel: Panel) -> bool:
    return any(isinstance(mark, Heat) for mark in panel.marks)


def _trace(mark: Series | Heat | Boxes, log: bool) -> dict[str, Any]:
    if isinstance(mark, Heat):
        return {"type": "heatmap", "x": _texts(mark.columns), "y": _texts(mark.rows), "coloraxis": "coloraxis",
                "z": _numbers(np.log10(mark.z) if log else mark.z), "customdata": _numbers(mark.z),
                "hovertemplate": "%{x}, %{y}: %{customdata:.4~g}<extra></extra>"}
    if isinstance(mark, Boxes):
        return {"type": "box", "x": _numbers(mark.x), "lowerfence": _numbers(mark.low), "q1": _numbers(mark.q1),
                "median": _numbers(mark.median), "q3": _numbers(mark.q3), "upperfence": _numbers(mark.high),
                "marker": {"color": palette.COLOURS[0]}, "line": {"width": 1}, "showlegend": False, "name": ""}
    colour = palette.colour(mark.style)
    mode = "+".join(word for word, wanted in (("lines", mark.line != "none"), ("markers", mark.markers)) if wanted)
    trace = {"type": "scatter", "name": _text(mark.name), "mode": mode,
             "x": _numbers(mark.x) or [None], "y": _numbers(mark.y) or [None],  # without a place there is no legend
             "line": {"color": colour, "width": 1.5, "dash": _DASHES[mark.line],
                      "shape": "hv" if mark.line == "steps" else "linear"},
             "marker": {"color": colour, "size": 8,
                        "symbol": palette.marker(mark.style)[1] + ("-open" if palette.hollow(mark.style) else "")}}
    if mark.ends is not None and np.isfinite(mark.ends[0]).any():
        middle = np.asarray(mark.y if mark.along == "y" else mark.x)
        trace[f"error_{mark.along}"] = {"type": "data", "symmetric": False, "array": _numbers(np.asarray(mark.ends[1]) - middle),
                                        "arrayminus": _numbers(middle - np.asarray(mark.ends[0])), "thickness": 1, "width": 0}
    if mark.style is None:
        return trace | {"hoverinfo": "skip"}
    if mark.hover:
        return trace | {"text": _texts(mark.hover), "hovertemplate": "%{text}<br>x %{x:.4~g}, y %{y:.4~g}<extra></extra>"}
    return trace | {"hovertemplate": "x %{x:.4~g}, y %{y:.4~g}"}


def _axis(axis: Axis, panel: Panel) -> dict[str, Any]:
    found: dict[str, Any] = {"title": {"text": axis.label}, "automargin": True}
    if _is_map(panel):
        return found | {"type": "category", "nticks": 10}
    if axis.log:
        found |= {"type": "log", "dtick": "D2", "tickformat": "~g"}
    if axis.names is not None and len(axis.names) > _MOST:
        found |= {"showticklabels": False}
    elif axis.names is not None:
        found |= {"tickmode": "array", "tickvals": list(range(len(axis.names))), "ticktext": _texts(axis.names)}
    if axis.ticks is not None:
        found |= {"tickmode": "array", "tickvals": _numbers(axis.ticks), "ticktext": [short(tick) for tick in axis.ticks]}
    return found


def _colours(figure: Figure) -> dict[str, Any]:
    z = np.concatenate([mark.z[np.isfinite(mark.z)] for panel in figure.panels for mark in panel.marks if isinstance(mark, Heat)])
    bar: dict[str, Any] = {"title": {"text": figure.colour.label, "side": "right"}}
    if not figure.colour.log:
        return {"colorscale": palette.MAP.capitalize(), "colorbar": bar}
    low, high = math.log10(z.min()), math.log10(z.max())
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in ((1, 2, 5) if high - low < 3 else (1,))]
    ticks = [tick for tick in ticks if low - 1e-9 <= math.log10(tick) <= high + 1e-9]
    bar |= {"tickvals": _numbers([math.log10(tick) for tick in ticks]), "ticktext": [f"{tick:g}" for tick in ticks]}
    return {"colorscale": palette.MAP.capitalize(), "cmin": low, "cmax": high, "colorbar": bar}


def _text(name: str) -> str:
    """Of a file, so never plotly's markup."""
    return html.escape(name, quote=False)


def _texts(names: Sequence[str]) -> list[str]:
    return [_text(name) for name in names]


def _numbers(values: Any) -> list[Any]:
    """Plain numbers, null where there is none."""
    array = np.asarray(values, dtype=float)
    if array.ndim > 1:
        return [_numbers(row) for row in array]
    return [rounded(value) if math.isfinite(value) else None for value in array.tolist()]
