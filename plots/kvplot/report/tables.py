"""The report's tables: what was run, means by label, every row, and what went wrong or was remarked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd
from kvlab_results import Results

from kvplot import choice as ch
from kvplot.report.numbers import rounded

# Shown at first; the other columns are a click away.
FIRST = ("bits_per_element", "bits_at_32k", "bits_at_128k", "wo_rel", "attn_kl", "out_rel", "k_nmse", "v_nmse", "decode_us",
         "encode_us", "append_us", "dequantize_us", "experiment_us", "bytes_per_second", "of_copy", "of_read", "step_us", "step_p99_us", "step_longest_us",
         "tokens_per_second", "cache_bytes", "ppl", "dnll", "dnll_tail", "next_kl", "needle_exact", "needle_nll", "divergence")


def tables(results: Results) -> list[dict[str, Any]]:
    return [_labels(results), _rows(results), _remarks(results), _run(results)]


def _measured(results: Results) -> list[str]:
    return [*(name for name in FIRST if results.measured(name)),
            *(name for name in results.units if name not in FIRST and results.measured(name))]


def _labels(results: Results) -> dict[str, Any]:
    """Means of the complete rows of a label and sweep point; a line for those that have none, too."""
    keys = ["label", *results.axes]
    metrics = _measured(results)
    groups = results.summary.groupby(keys, sort=False, dropna=False)
    means = results.complete.groupby(keys, sort=False, dropna=False)[metrics].mean()
    complete = results.complete.groupby(keys, sort=False, dropna=False).size()
    frame = groups.size().rename("rows").to_frame().join(means)
    frame["complete"] = complete.reindex(frame.index).fillna(0).astype(int)
    frame = frame.reset_index()[[*keys, *metrics, "complete", "rows"]]
    pooled = ch.pooled(results.complete) or "one row each"
    return _table("labels", "Results", f"{pooled}; rows that are not complete count in no mean", frame, results,
                  {*keys, *(name for name in FIRST), "complete", "rows"})


def _rows(results: Results) -> dict[str, Any]:
    """Every row of the summary; a click opens its cell."""
    summary = results.summary
    varied = [name for name in ("dataset", "layer", "seed", "backend") if summary[name].nunique() > 1]
    keys = ["label", *varied, *results.axes, "status"]
    frame = summary[[*keys, *_measured(results), "method", "reason", "warnings", "cell"]]
    return _table("rows", "Cells", "choose a row for its configuration and warnings", frame, results,
                  {*keys, *FIRST[:6], "decode_us", "encode_us"})


def _remarks(results: Results) -> dict[str, Any]:
    """Reasons and warnings, each with the number of rows and the labels that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in results.summary[["label", "status", "reason", "warnings"]].itertuples():
        if row.status != "complete":
            found.setdefault((row.status, row.reason), []).append(row.label)
        for warning in filter(None, row.warnings.split("\n")):
            found.setdefault(("warning", warning), []).append(row.label)
    complete = results.complete
    for metric in _measured(results):
        # Of a label that has numbers; one without any has a dash.
        some = complete["label"].isin(complete.loc[complete[metric].notna(), "label"])
        for label in complete.loc[some & complete[metric].isna(), "label"]:
            found.setdefault(("no number", f"{metric} is no number, and its means leave the row out"), []).append(label)
    frame = pd.DataFrame([{"what": what, "text": text, "rows": len(labels), "labels": ", ".join(dict.fromkeys(labels))}
                          for (what, text), labels in found.items()], columns=["what", "text", "rows", "labels"])
    return _table("remarks", "Remarks", "why a row has no numbers, and what to know about those that have", frame, results)


def _run(results: Results) -> dict[str, Any]:
    """Where the numbers come from."""
    facts = dict(results.run)
    for column, values in results.provenance.items():
        if column not in facts and column not in ("cell", "reason", "started", "seconds"):
            facts[str(column)] = ", ".join(sorted({str(value) for value in values if value is not None}))
    facts["seconds of all cells"] = f"{results.provenance['seconds'].sum():.1f}"
    frame = pd.DataFrame({"what": facts.keys(), "value": facts.values()})
    return _table("run", "Run", "what was run, on what and with what", frame, results)


def _table(name: str, title: str, note: str, frame: pd.DataFrame, results: Results,
           shown: Iterable[str] | None = None) -> dict[str, Any]:
    visible = set(frame.columns if shown is None else shown)
    return {"name": name, "title": title, "note": note,
            "columns": [{"name": column, "unit": results.units.get(column, ""), "shown": column in visible,
                         "number": pd.api.types.is_numeric_dtype(frame[column])} for column in frame],
            "values": [[_value(value) for value in frame[column].tolist()] for column in frame]}


def _value(value: Any) -> Any:
    """As JSON has it: null for NaN, infinity as a text."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return rounded(value)
