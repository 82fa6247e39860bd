"""Puts the page together: one file that loads nothing."""

from __future__ import annotations

import html
import json
import os
from importlib.resources import files
from typing import Any

import yaml
from kvlab_results import Refused, Results

from kvplot import kinds
from kvplot.choice import Choice
from kvplot.report.charts import chart
from kvplot.report.tables import tables

_BOTH_SIDES = ("norms", "channels", "tokens", "cumulative")  # drawn for keys and for values


def page(results: Results, path: str) -> tuple[str, list[str]]:
    """The page, and a sentence for each kind of picture that the file has no data for."""
    path = os.fsencode(path).decode(errors="replace")  # a file's name may be no UTF-8
    pictures, missing = _pictures(results, path)
    ours = files("kvplot.report")
    name = results.run.get("name", "results")
    described = yaml.safe_load(results.experiment) or {}
    blocks = {
        "TITLE": html.escape(f"{name}: kvlab report"),
        "NAME": html.escape(name),
        "DESCRIPTION": html.escape(str(described.get("description", ""))),
        "STYLE": ours.joinpath("report.css").read_text("utf-8"),
        "DATA": _json({"file": path, "tables": tables(results), "pictures": pictures, "missing": missing}),
        "CONFIGS": _json(_configs(results)),
        "SCRIPT": ours.joinpath("report.js").read_text("utf-8"),
        "PLOTLY": files("plotly").joinpath("package_data/plotly.min.js").read_text("utf-8"),
    }
    parts = ours.joinpath("page.html").read_text("utf-8").split("@@")
    return "".join(blocks[part] if place % 2 else part for place, part in enumerate(parts)), missing


def _pictures(results: Results, path: str) -> tuple[list[dict[str, Any]], list[str]]:
    pictures, missing = [], []
    for name, kind in kinds.ALL.items():
        for side in ("key", "value") if name in _BOTH_SIDES else ("key",):
            choice = Choice(side=side)
            try:
                figure = kind.figure(results, choice)
            except Refused as refusal:
                sentence = f"{kind.TITLE}: {str(refusal).removeprefix(f'{results.path}: ').replace(str(results.path), 'the file')}"
                missing += [sentence] if sentence not in missing else []
                continue
            title = f"{figure.title}, {side}s" if name in _BOTH_SIDES else figure.title
            pictures.append({"title": title, "command": choice.command(path, name)} | chart(figure))
    return pictures, missing


def _configs(results: Results) -> dict[str, Any]:
    """Configurations of all cells. Most parts are shared, so each is stored once: cell to key to place in `parts`."""
    parts: dict[str, int] = {}
    cells = {cell: {key: parts.setdefault(json.dumps(value), len(parts)) for key, value in config.items()}
             for cell, config in results.configs().items()}
    return {"parts": [json.loads(part) for part in parts], "cells": cells}


def _json(value: Any) -> str:
    """JSON that may stand in a <script>: nothing in it ends the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
