"""Means of a metric along any column of the summary, with the intervals of `kvlab table`: labels in rank, or a line each."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from kvlab_results import Refused, Results
from kvlab_results.intervals import FEWEST_PASSAGES, NEEDED_PASSAGES, SHARES, Sampled, interval, of_share

from kvplot import choice as ch
from kvplot.figure import Axis, Figure, Panel, Series

KIND = "means"
TITLE = "Means"
NEEDS = "any metric; --value and --x choose it and a column"
PART = "part"  # of --x: the number that ends a label behind its comma, 7 in "kivi, layer 7", which is a point of "kivi"
NUMBERED = r"^(?P<label>.+), (?P<name>\D*?) ?(?P<number>\d+)$"
COLUMNS = ("label", "method", "dataset", "text", "layer", "seed", "backend")
SPREAD = 10  # factor between means from which on their axis is logarithmic


def figure(results: Results, choice: ch.Choice) -> Figure:
    value = ch.metric(results, choice.value, (*ch.ERRORS, *results.units), "what this kind draws", "--value names a metric")
    x = choice.x or "label"
    found, left_out, title = *ch.without(ch.rows(results, choice), value), x
    if x == PART:
        found, title = _parts(found, results)
    ch.known(x, [name for name in (*COLUMNS, *results.axes, PART) if name in found], f"{results.path}: there is no column")
    if found.empty:
        raise Refused(f"{results.path}: no row that is left has a {value}, which {KIND} draws")
    blocks = results.arrays_of(found["cell"].unique(), "blocks", {value})
    numbers = [Sampled.of_cell(row_value, blocks[cell].get(value), value) for cell, row_value in zip(found["cell"], found[value],
                                                                                                     strict=True)]
    trials = [blocks[cell][value].shape[1] if value in SHARES and value in blocks[cell] else 0 for cell in found["cell"]]
    found = found.assign(passage=results.passages.reindex(found.index), number=numbers, trials=trials)
    name = ch.name_of(value, results)
    if x in ("label", "method"):
        means, some = _means(found, x, value), [x]
        axis = Axis(name, log=_is_wide(means))
        drawn = _drawn(means, axis)
        panel = _ranked(drawn, axis, ch.styles(results))
    else:
        means, some = _means(found, [x, "label"], value), [x, "label"]
        axis = Axis(name, log=_is_wide(means))
        drawn = _drawn(means, axis)
        panel = _lines(drawn, x, title, axis, ch.styles(results), ch.in_order(found))
    if drawn.empty:
        raise Refused(f"{results.path}: no {value} that is left is finite, which {KIND} draws")
    others = [axis for axis in results.axes if axis not in some]
    pooled = ch.pooled(found.assign(**{column: 0 for column in some}), others)
    return Figure(KIND, f"Mean {value} by {title}", [panel], ch.sentence(
        pooled, _intervals(means, value),
        _listed("over fewer rows than others, not comparable", means[means["rows"] < means["rows"].max()]),
        _listed("zero or infinite, not drawn", means.drop(drawn.index)), left_out))


def _parts(found: pd.DataFrame, results: Results) -> tuple[pd.DataFrame, str]:
    """The rows whose label ends in a number, under the label before it, and what is numbered."""
    split = found["label"].str.extract(NUMBERED)
    found, split = found[split["number"].notna()], split.dropna()
    if found.empty:
        raise Refused(f"{results.path}: no label has a number at its end, as 'kivi, layer 7' has, which --x {PART} takes")
    return found.assign(**{"label": split["label"], PART: split["number"].astype(int)}), "; ".join(split["name"].unique())


def _means(found: pd.DataFrame, keys: str | list[str], value: str) -> pd.DataFrame:
    """Columns mean, low, high, rows; one row a key."""
    def of(rows: pd.DataFrame) -> pd.Series:
        groups = rows.groupby("passage", sort=True)
        passages = [Sampled.mean(list(numbers)) for _, numbers in groups["number"]]
        trials = list(groups["trials"].first())
        if all(trials):
            mean, low, high = of_share([passage.value for passage in passages], trials)
        else:
            low, high = interval(passages, whole_models=bool((rows["layer"] < 0).all()))
            mean = rows[value].mean()
        return pd.Series({"mean": mean, "low": low, "high": high, "rows": len(rows)})

    return found.groupby(keys, sort=False, dropna=False)[["passage", "layer", "number", "trials", value]].apply(of)


def _is_wide(means: pd.DataFrame) -> bool:
    positive = means["mean"][(means["mean"] > 0) & np.isfinite(means["mean"])]
    return len(positive) > 1 and bool((means["mean"] >= 0).all()) and positive.max() > SPREAD * positive.min()


def _drawn(means: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Those that the axis has a place for."""
    return means[np.isfinite(means["mean"]) & ((means["mean"] > 0) | (not axis.log))]


def _ranked(means: pd.DataFrame, x: Axis, styles: dict[str, int]) -> Panel:
    """A line a name, the smallest mean at the top."""
    ordered = means.sort_values("mean", ascending=False, kind="stable")
    marks = [Series(name, [row["mean"]], [place], styles.get(name, 0), line="none", legend=False,
                    hover=[f"{name}, {_words(row)}"], ends=([row["low"]], [row["high"]]), along="x")
             for place, (name, row) in enumerate(ordered.iterrows())]
    return Panel(x, Axis("", names=list(ordered.index)), marks)


def _lines(means: pd.DataFrame, column: str, title: str, y: Axis, styles: dict[str, int], labels: list[str]) -> Panel:
    """A line a label along a column of numbers, points where it has names."""
    places = list(means.index.get_level_values(column).unique())
    is_number = pd.api.types.is_numeric_dtype(means.index.get_level_values(column))
    axis = Axis(title) if is_number else Axis(title, names=[str(place) for place in places])
    marks = []
    for label in labels:
        if label not in means.index.get_level_values("label"):
            continue
        mine = means.xs(label, level="label")
        mine = mine.sort_index() if is_number else mine.loc[[place for place in places if place in mine.index]]
        at = [float(place) if is_number else places.index(place) for place in mine.index]
        hover = [f"{label}, {title} {place}, {_words(row)}" for place, row in mine.iterrows()]
        marks.append(Series(label, at, list(mine["mean"]), styles.get(label, len(marks)), "solid" if is_number else "none", hover=hover,
                            ends=(list(mine["low"]), list(mine["high"]))))
    return Panel(axis, y, marks)


def _words(row: pd.Series) -> str:
    ends = "" if math.isnan(row["low"]) else f" [{row['low']:.4g}, {row['high']:.4g}]"
    return f"{row['mean']:.4g}{ends}, {row['rows']:.0f} rows"


def _intervals(means: pd.DataFrame, value: str) -> str:
    if value in SHARES:
        return "lines: Wilson's 95% intervals of the shares of trials"
    if means["low"].notna().any():
        return "lines: 95% intervals that resample the passages, where a metric is known by position blocks of it too"
    return f"no intervals, which need {NEEDED_PASSAGES} passages, {FEWEST_PASSAGES} of a metric that is known by position"


def _listed(said: str, means: pd.DataFrame) -> str:
    return ch.listed(said, [" ".join(map(str, key)) if isinstance(key, tuple) else key for key in means.index])
