"""kvlab.results/1 files with any rows, for what no run writes: many labels, odd names, values that are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

TEXTS = {"status": "complete", "reason": "", "method": "kivi", "label": "kivi", "dataset": "text", "backend": "reference",
         "warnings": ""}
COUNTS = {"layer": 0, "seed": 0, "seed_used": 0, "hist_tokens_key": 0, "hist_tokens_value": 0, "window_tokens_key": 0,
          "window_tokens_value": 0}


def write_results(path: Path, columns: Mapping[str, Sequence[Any]], metrics: Mapping[str, Sequence[float]],
                  arrays: Mapping[str, np.ndarray] | None = None, by_head: Mapping[str, np.ndarray] | None = None) -> Path:
    """A row and a cell for each place of the columns (axes of a sweep among them) and metrics.

    `arrays` are every cell's arrays by token, `by_head` its metrics by head.
    """
    count = len(next(iter([*columns.values(), *metrics.values()]), ()))
    ids = [f"{place:032x}" for place in range(count)]
    with h5py.File(path, "w") as file:
        file.attrs.update({"schema": "kvlab.results/1", "name": "made", "code_version": "aa11", "backend": "reference"})
        file["experiment/source"] = file["experiment/resolved"] = "schema: 1\n"
        summary = file.create_group("summary")
        axes = [name for name in columns if name not in TEXTS and name not in COUNTS]
        summary.attrs.create("axes", axes, shape=(len(axes),), dtype=h5py.string_dtype())
        all_columns = {name: [value] * count for name, value in (TEXTS | COUNTS).items()} | dict(columns)
        for name, values in {"cell": ids, "row": list(range(count)), **all_columns}.items():
            texts = any(isinstance(value, str) for value in values) or name in TEXTS or name == "cell"
            summary.create_dataset(name, data=values, dtype=h5py.string_dtype() if texts else None, shape=(count,))
        for name, values in metrics.items():
            summary.create_dataset(name, data=np.asarray(values, dtype=float)).attrs["unit"] = "us" if name.endswith("_us") else ""
        cells = file.create_group("cells")
        for place, cell in enumerate(ids):
            group = cells.create_group(cell)
            group["config"] = json.dumps({"dataset": {"source": "capture"}, "method": {"label": str(all_columns["label"][place])}})
            group.attrs.update({"status": str(all_columns["status"][place]), "reason": "", "started": "", "seconds": 1.0,
                                "code_version": "aa11"})
            group.attrs.create("warnings", [], shape=(0,), dtype=h5py.string_dtype())
            group.attrs.create("scalar_names", list(metrics), dtype=h5py.string_dtype())
            group.attrs["scalars"] = [float(values[place]) for values in metrics.values()]
            for name, values in metrics.items():
                group[f"metrics/{name}"] = float(values[place])
            for name, array in (by_head or {}).items():
                if name in group.require_group("metrics"):
                    del group[f"metrics/{name}"]
                group[f"metrics/{name}"] = array
            for name, array in (arrays or {}).items():
                group[f"tokens/{name}"] = array
    return path
