"""Times by one axis, for the kinds that draw them."""

from __future__ import annotations

import pandas as pd
from kvlab_results import Refused, Results

from kvplot import choice as ch

HELD = ("bytes_codes", "bytes_params", "bytes_scales", "bytes_centers", "bytes_window", "bytes_padding")


def times(results: Results, choice: ch.Choice, axis: str, made_by: str) -> tuple[str, pd.DataFrame]:
    """The time that is drawn, and its rows: with it, `axis` above 0, and `bytes` where the file knows them."""
    value = ch.metric(results, choice.value, ("decode_us", "step_us", "encode_us", "append_us"), "the time that this kind draws",
                      f"{made_by} makes it")
    if axis not in results.axes:
        raise Refused(f"{results.path}: nothing varies {axis}, which this kind draws; {made_by} does")
    found = ch.rows(results, choice)
    found = found[(found[value] > 0) & (found[axis] > 0)].copy()
    held = [name for name in HELD if name in found]
    counted = found[held].sum(axis=1, min_count=1) if held else pd.Series(float("nan"), found.index)
    found["bytes"] = found["bytes"].fillna(counted) if "bytes" in found else counted
    return value, found


def panels(results: Results, found: pd.DataFrame, axis: str,
           most: int = ch.MOST_PANELS) -> tuple[list[tuple[str, pd.DataFrame]], str]:
    """Rows by what else the file varies, each with a title; what has one place on `axis` makes no line and is left out."""
    others = [name for name in results.axes if name not in (axis, "group") and found[name].nunique() > 1]
    groups = [(_title(others, key), rows) for key, rows in found.groupby(others, sort=True)] if others else [("", found)]
    lines = [(title, rows) for title, rows in groups if rows.groupby("label")[axis].nunique().max() > 1]
    if not lines:
        raise Refused(f"{results.path}: nothing was timed at two places of {axis} with all else equal")
    shown = lines[:most]
    return shown, f"{len(shown)} of {len(groups)} settings, --where chooses" if len(shown) < len(groups) else ""


def _title(names: list[str], key: object) -> str:
    values = key if isinstance(key, tuple) else (key,)
    return ", ".join(f"{name} {value:g}" if isinstance(value, (int, float)) else f"{name} {value}"
                     for name, value in zip(names, values, strict=True) if value != "")
