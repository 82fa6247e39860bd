"""A picture as data. Kinds make it (kinds/), and two renderers draw it: matplotlib to files, plotly in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Axis:
    label: str
    log: bool = False
    ticks: Sequence[float] | None = None  # where a log axis has its numbers; None: where the renderer likes them
    names: Sequence[str] | None = None  # of the places 0, 1, … of an axis of names


@dataclass(frozen=True)
class Series:
    """Points or a line. `style` is the place of its colour and marker in the palette, None for a neutral one."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: int | None = None
    line: str = "solid"  # solid | dashed | steps | none
    markers: bool = True
    hover: Sequence[str] | None = None  # a text a point
    ends: tuple[Sequence[float], Sequence[float]] | None = None  # of intervals, NaN where there is none
    along: str = "y"  # the axis of the intervals
    legend: bool = True


@dataclass(frozen=True)
class Heat:
    """A map, z [rows, columns]; NaN stays empty. All maps of a figure share one colour scale."""

    columns: Sequence[str]
    rows: Sequence[str]
    z: np.ndarray
    numbers: bool = False  # each value written into its field


@dataclass(frozen=True)
class Boxes:
    """One box a place on x: quartiles, and whiskers at the extremes; each of shape [n]."""

    x: Sequence[float]
    low: np.ndarray
    q1: np.ndarray
    median: np.ndarray
    q3: np.ndarray
    high: np.ndarray


@dataclass(frozen=True)
class Panel:
    x: Axis
    y: Axis
    marks: Sequence[Series | Heat | Boxes]
    title: str = ""


@dataclass(frozen=True)
class Figure:
    kind: str
    title: str
    panels: Sequence[Panel]
    caption: str = ""  # what was averaged, what was left out: for the text below the picture, not in it
    columns: int = 1  # panels side by side
    height: float = 0.72  # of a panel, over its width
    colour: Axis = field(default_factory=lambda: Axis(""))  # of maps


def short(number: float) -> str:
    """1024 as 1K, 131072 as 128K."""
    return f"{number / 1024:g}K" if number >= 1024 and number % 1024 == 0 else f"{number:g}"
