"""Draws a figure with matplotlib for a two-column paper: PNG, SVG or PDF, the same bytes for the same data."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.axis import Axis as CanvasAxis
from matplotlib.figure import Figure as Canvas
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from kvlab_results import Refused
from kvplot import palette
from kvplot.figure import Axis, Boxes, Figure, Heat, Panel, Series, short

WIDTHS = {"column": 3.35, "text": 7.0}  # inches, of one column and of both

# Fonts come inside matplotlib, so that every machine draws the same; STIX goes with the papers' Times.
_STYLE = {
    "font.family": ["STIXGeneral", "DejaVu Sans"], "mathtext.fontset": "stix", "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7, "axes.linewidth": 0.6, "lines.linewidth": 1.0,
    "lines.markersize": 4.5, "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4, "axes.grid": False, "legend.frameon": False, "pdf.fonttype": 42, "svg.fonttype": "path",
    "svg.hashsalt": "kvlab", "savefig.dpi": 300, "axes.axisbelow": True, "path.simplify": True,
}
_LINE = 0.14  # inches of a line of a legend
_SIGN = 0.35  # inches of a legend's sign and the space around it
_ROW, _MOST_ROWS = 0.15, 60  # inches of a name in a list of names, and names of a page
_MOST_NAMES = 150  # in a legend
_LINES = {"solid": "-", "dashed": (0, (3, 2)), "steps": "-", "none": ""}
# What would tell one run from another.
_NO_DATES = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None,
             "Creator": None, "Producer": None}}


def draw(figure: Figure, suffix: str, width: str = "column") -> bytes:
    """The picture as a file's content."""
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        canvas = _canvas(figure, WIDTHS[width])
        out = io.BytesIO()
        canvas.savefig(out, format=suffix, metadata=_NO_DATES[suffix])
    return _numbered(out.getvalue()) if suffix == "svg" else out.getvalue()


def _numbered(svg: bytes) -> bytes:
    """With its identifiers in order of appearance. Matplotlib's are hashes of unrounded coordinates, whose last bits are not
    those of every machine."""
    places: dict[bytes, int] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return found[1] + b"%s%d" % (found[2], places.setdefault(found[2] + found[3], len(places)))

    return re.sub(rb'(id="|#)([A-Za-z]\w*?)([0-9a-f]{10})\b', number, svg)


def _canvas(figure: Figure, width: float) -> Canvas:
    rows = max(len(panel.y.names or ()) for panel in figure.panels)
    if rows > _MOST_ROWS:
        raise Refused(f"{rows} rows of names are more than the {_MOST_ROWS} that a page holds; --only chooses labels")
    columns = _columns(figure, width > 5)
    lines = math.ceil(len(figure.panels) / columns)
    names = _legend(figure, width)
    beside = width > 5 and len(names) > 8 and columns == 1
    room = _SIGN + max((_width(name, mpl.rcParams["legend.fontsize"]) for name in names), default=0)  # inches of an entry
    legend_columns = _columns_beside(len(names), lines * figure.height, width, room) if beside else max(
        1, min(len(names), int(width / room)))
    legend_height = _LINE * math.ceil(len(names) / legend_columns) if names else 0.0
    panel = width - legend_columns * room if beside else width / columns
    height = lines * (0.2 + _ROW * rows if rows else panel * figure.height)
    height = (max(height, legend_height) if beside else height + legend_height) + 0.1
    # Letters are as wide as they come out only at the picture's own resolution.
    canvas = Canvas(figsize=(width, height), dpi=mpl.rcParams["savefig.dpi"], layout="constrained")
    canvas.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.03, hspace=0.03)
    axes = canvas.subplots(lines, columns, squeeze=False).ravel()
    norm = _norm(figure)
    for place, panel_axes in enumerate(axes):
        if place < len(figure.panels):
            _panel(panel_axes, figure.panels[place], norm)
            _label(panel_axes, figure, place, columns)
        else:
            panel_axes.set_axis_off()
    if norm is not None:
        scale = mpl.cm.ScalarMappable(norm, palette.MAP)
        bar = canvas.colorbar(scale, ax=axes, label=_math(figure.colour.label), aspect=30, pad=0.02)
        bar.outline.set_linewidth(0.4)
        if figure.colour.log:
            _plain_numbers(bar.ax.yaxis, norm.vmin, norm.vmax)
    if names:
        canvas.legend(names.values(), names.keys(), loc="outside right center" if beside else "outside lower center",
                      ncols=legend_columns, handlelength=1.6, columnspacing=1.0, labelspacing=0.3, handletextpad=0.4)
    # What fits is known only when all is in its place, and then moves it.
    for _ in range(3):
        canvas.draw_without_rendering()
        if not any([_break_lines(*one) for one in zip(axes, figure.panels, strict=False)]):
            break
    else:
        canvas.draw_without_rendering()
    for panel_axes in canvas.axes:
        _thin(panel_axes.xaxis)
        _thin(panel_axes.yaxis)
    return canvas


def _break_lines(axes: Axes, panel: Panel) -> bool:
    """Makes title and label of a panel no longer than it is; whether that changed one."""
    width, height = axes.get_window_extent().size / axes.figure.dpi
    changed = False
    for text, plain_text, most in ((axes.title, _name(panel.title), width), (axes.yaxis.label, panel.y.label, height)):
        broken = _math(_wrap(plain_text, most, text.get_size())) if text.get_text() else ""
        changed = changed or broken != text.get_text()
        text.set_text(broken)
    return changed


def _thin(axis: CanvasAxis) -> None:
    """Takes the numbers from ticks where they would run into each other. The ticks stay, but for those of a map."""
    low, high = sorted(axis.get_view_interval())
    labels = [label for label in axis.get_majorticklabels() if label.get_text() and low <= _place(axis, label) <= high]
    labels.sort(key=lambda label: _place(axis, label))
    way = 0 if axis.axis_name == "x" else 1
    spans = [tuple(label.get_window_extent().get_points()[:, way]) for label in labels]
    if axis.get_inverted():
        spans = [(-end, -begin) for begin, end in spans]
    kept = set(_apart(spans, axis.get_figure().dpi / 40))
    if len(kept) < len(labels):
        shown = [(_place(axis, label), label.get_text() if i in kept else "") for i, label in enumerate(labels)
                 if i in kept or not axis.axes.images]
        axis.set_ticks([place for place, _ in shown], [text for _, text in shown])


def _place(axis: CanvasAxis, label: mpl.text.Text) -> float:
    return label.get_position()[0 if axis.axis_name == "x" else 1]


def _apart(spans: Sequence[tuple[float, float]], gap: float) -> list[int]:
    """The spans, which ascend, that may stay without touching: every so-manieth where they are evenly spaced, else as many
    as fit, the first and last among them."""
    def fit(chosen: Sequence[int]) -> bool:
        return all(spans[b][0] - spans[a][1] >= gap for a, b in zip(chosen, chosen[1:], strict=False))

    every = range(len(spans))
    if len(spans) < 2 or fit(every):
        return list(every)
    middles = np.mean(spans, axis=1)
    if np.ptp(np.diff(middles)) < gap:
        return list(next(every[::step] for step in range(2, len(spans) + 1) if fit(every[::step])))
    kept = [0]
    for place in every[1:]:
        if fit([kept[-1], place]):
            kept.append(place)
    last = len(spans) - 1
    while kept[-1] != last and kept[1:] and not fit([kept[-1], last]):
        kept.pop()
    return kept + [last] * (kept[-1] != last and fit([kept[-1], last]))


def _width(text: str, size: float) -> float:
    """Inches of a text."""
    return text_to_path.get_text_width_height_descent(text, FontProperties(size=size), False)[0] / 72


def _wrap(text: str, inches: float, size: float) -> str:
    """Lines no longer than this, broken at spaces and behind `_`, `,` and `-`, else anywhere."""
    most = max(1, int(inches / _width("n", size)))
    lines = [""]
    for word in re.findall(rf"W_O|[^\s_,-]{{1,{most}}}[_,-]*|[_,-]+|\s+", text):
        if lines[-1] and _width(lines[-1] + word.rstrip(), size) > inches:
            lines.append("")
        lines[-1] += word if lines[-1] else word.lstrip()
    return "\n".join(line.rstrip() for line in lines)


def _name(text: str) -> str:
    """A name of a file's as a text of a picture: in one line, and never mathematics."""
    return " ".join(text.split()).replace("$", r"\$")


def _columns_beside(names: int, ratio: float, width: float, room: float) -> int:
    """Columns of a legend beside the panels, which shrink by each: the fewest that are no higher than the panels, else
    as many as leave the panels half of the width."""
    most = max(1, int(width / 2 / room))
    fitting = (columns for columns in range(1, most) if names / columns * _LINE <= (width - columns * room) * ratio)
    return next(fitting, most)


def _columns(figure: Figure, wide: bool) -> int:
    """Panels side by side; four stand in one line or in a square, not as three and one."""
    count = len(figure.panels)
    if count == 4 and figure.columns > 1:
        return 4 if wide else 2
    return min(figure.columns if wide else min(figure.columns, 2), count)


def _label(axes: Axes, figure: Figure, place: int, columns: int) -> None:
    """What all panels share stands at the left and at the lowest ones only."""
    panel = figure.panels[place]
    if place + columns >= len(figure.panels) or len({other.x.label for other in figure.panels}) > 1:
        axes.set_xlabel(_math(panel.x.label))
    if place % columns == 0 or len({other.y.label for other in figure.panels}) > 1:
        axes.set_ylabel(_math(panel.y.label), linespacing=1.0)


def _math(label: str) -> str:
    return label.replace("W_O", "$W_O$")


def _panel(axes: Axes, panel: Panel, norm: Normalize | None) -> None:
    axes.set_title(_name(panel.title), linespacing=1.0)
    for mark in panel.marks:
        if isinstance(mark, Heat):
            _heat(axes, mark, norm)
        elif isinstance(mark, Boxes):
            _boxes(axes, mark)
        else:
            _series(axes, mark)
    if not any(isinstance(mark, Heat) for mark in panel.marks):
        axes.grid(True, linewidth=0.3, color="#cccccc")
        _scale(axes, "x", panel.x)
        _scale(axes, "y", panel.y)


def _scale(axes: Axes, which: str, axis: Axis) -> None:
    if axis.names is not None:
        getattr(axes, f"set_{which}ticks")(range(len(axis.names)), [_entry(name, 2.0) for name in axis.names])
        getattr(axes, f"set_{which}lim")(-0.6, len(axis.names) - 0.4)
    if not axis.log:
        return
    getattr(axes, f"set_{which}scale")("log")
    if axis.ticks is not None:
        scale = getattr(axes, f"{which}axis")
        scale.set_ticks([float(tick) for tick in axis.ticks], [short(tick) for tick in axis.ticks])
        scale.set_minor_locator(NullLocator())
        scale.set_minor_formatter(NullFormatter())
    else:
        _plain_numbers(getattr(axes, f"{which}axis"), *getattr(axes, f"get_{which}lim")())


def _plain_numbers(scale, low: float, high: float) -> None:
    """A logarithmic axis with 0.1, 0.2, 0.5 where it spans few decades, and powers of ten elsewhere."""
    if high / low < 2000:
        scale.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 4 else tuple(range(1, 10))))
        scale.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    scale.set_minor_formatter(NullFormatter())


def _series(axes: Axes, series: Series) -> None:
    if series.ends is not None:
        lines = axes.vlines if series.along == "y" else axes.hlines
        lines(series.x if series.along == "y" else series.y, *series.ends, color=palette.colour(series.style), linewidth=0.8)
    axes.plot(series.x, series.y, label=series.name, color=palette.colour(series.style), linestyle=_LINES[series.line],
              marker=palette.marker(series.style)[0] if series.markers else None, fillstyle=_fill(series),
              drawstyle="steps-post" if series.line == "steps" else "default",
              linewidth=0.7 if series.style is None else None, zorder=1 if series.style is None else 2)


def _fill(series: Series) -> str:
    return "none" if palette.hollow(series.style) else "full"


def _heat(axes: Axes, heat: Heat, norm: Normalize | None) -> None:
    assert norm is not None
    axes.imshow(np.ma.masked_invalid(heat.z), cmap=palette.MAP, norm=norm, aspect="auto", interpolation="nearest")
    axes.set_xticks(*_places(heat.columns))
    axes.set_yticks(*_places(heat.rows))
    if not heat.numbers:
        return
    for (row, column), value in np.ndenumerate(heat.z):
        if not np.isnan(value):
            dark = norm(value) < 0.5
            axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6, color="white" if dark else "black")


def _places(names: Sequence[str]) -> tuple[list[int], list[str]]:
    """Ticks of a map: few enough to be measured, where it has hundreds of rows."""
    places = range(0, len(names), -(-len(names) // 32))
    return list(places), [_name(names[place]) for place in places]


def _boxes(axes: Axes, boxes: Boxes) -> None:
    stats = [{"med": median, "q1": q1, "q3": q3, "whislo": low, "whishi": high, "fliers": []}
             for low, q1, median, q3, high in zip(boxes.low, boxes.q1, boxes.median, boxes.q3, boxes.high, strict=True)]
    thin = {"linewidth": 0.6, "color": palette.COLOURS[0]}
    axes.bxp(stats, positions=list(boxes.x), widths=0.7, showfliers=False, patch_artist=True, manage_ticks=False,
             boxprops={"linewidth": 0.6, "edgecolor": palette.COLOURS[0], "facecolor": "#cfe3f2"}, whiskerprops=thin,
             capprops=thin, medianprops={"linewidth": 0.9, "color": palette.COLOURS[1]})
    axes.set_xlim(min(boxes.x) - 1, max(boxes.x) + 1)


def _norm(figure: Figure) -> Normalize | None:
    """The one colour scale of all maps."""
    maps = [mark.z[np.isfinite(mark.z)] for panel in figure.panels for mark in panel.marks if isinstance(mark, Heat)]
    values = np.concatenate(maps) if maps else np.empty(0)
    if not values.size:
        return None
    return (LogNorm if figure.colour.log else Normalize)(values.min(), values.max() if values.max() > values.min() else None)


def _legend(figure: Figure, width: float) -> dict[str, object]:
    """Name to handle, each once over all panels."""
    handles: dict[str, object] = {}
    named = {mark.name: mark for panel in figure.panels for mark in panel.marks if isinstance(mark, Series) and mark.legend}
    if len(named) > _MOST_NAMES:
        raise Refused(f"{len(named)} names are more than the {_MOST_NAMES} that a legend holds; --only chooses labels")
    for name, series in named.items():
        handles.setdefault(_entry(name, width), mpl.lines.Line2D(
            [], [], color=palette.colour(series.style), linestyle=_LINES[series.line],
            marker=palette.marker(series.style)[0] if series.markers else None, fillstyle=_fill(series)))
    return handles


def _entry(name: str, width: float) -> str:
    """A name as a legend has it: cut in the middle where it would be wider than the picture, and never hidden, as matplotlib
    hides what starts with a line below."""
    text, size = " ".join(name.split()), mpl.rcParams["legend.fontsize"]
    kept = len(text)
    while _width(text, size) > width - _SIGN - 0.1:
        kept = kept * 9 // 10
        text = f"{text[:kept // 2]}…{text[len(text) - kept // 2:]}"
    return " " * text.startswith("_") + _name(text)


def plain(number: float) -> str:
    """50000 as 50k, 2000000 as 2M: short, and never with an exponent."""
    for size, sign in ((1e6, "M"), (1e3, "k")):
        if number >= 10 * size or (size == 1e6 and number >= size):
            return f"{number / size:g}{sign}"
    return f"{number:g}"
