"""Reading kvlab.results/1 with h5py alone, independent of the program, and comparing two files bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

# What may differ between two runs of one experiment with equal results (contract section 6).
RUN_ATTRIBUTES = {"created", "argv", "host"}
OTHER_THREADS = 1e-6  # what another number of threads may change, relative
CELL_ATTRIBUTES = {"seconds", "started", "sha256"}  # sha256 covers the other two


def column(dataset: h5py.Dataset) -> np.ndarray:
    """One column of /summary, strings as str."""
    return dataset.asstr()[:] if dataset.dtype.kind == "O" else dataset[:]


def summary(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: column(dataset) for name, dataset in file["summary"].items()}


def rows(path: Path) -> list[dict[str, Any]]:
    """The summary row by row, as plain Python values."""
    columns = {name: values.tolist() for name, values in summary(path).items()}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def states(path: Path) -> dict[str, str]:
    """Status of each cell in the file itself; parts are not looked at."""
    with h5py.File(path) as file:
        return {name: group.attrs["status"] for name, group in file["cells"].items()}


def configs(path: Path) -> dict[str, dict[str, Any]]:
    with h5py.File(path) as file:
        return {name: json.loads(group["config"].asstr()[()]) for name, group in file["cells"].items()}


def arrays(path: Path, group: str) -> list[dict[str, np.ndarray]]:
    """/cells/<id>/<group> of each summary row."""
    with h5py.File(path) as file:
        return [{name: dataset[()] for name, dataset in file["cells"][cell][group].items()}
                for cell in column(file["summary/cell"])]


def contents(path: Path) -> dict[str, Any]:
    """Everything that two runs of one experiment must have in common, by place: arrays, and texts as tuples."""
    found: dict[str, Any] = {}

    def value(raw: Any) -> Any:
        array = np.asarray(raw)
        return tuple(str(text) for text in np.atleast_1d(array)) if array.dtype.kind in "OSU" else array

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        for key, attribute in item.attrs.items():
            if key not in CELL_ATTRIBUTES:
                found[f"{name}@{key}"] = value(attribute)
        if isinstance(item, h5py.Dataset):
            found[name] = value(item.asstr()[()] if item.dtype.kind == "O" else item[()])

    with h5py.File(path) as file:
        found |= {f"@{key}": value(item) for key, item in file.attrs.items() if key not in RUN_ATTRIBUTES}
        file.visititems(visit)
    return found


def agree(a: Any, b: Any, tolerance: float) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return bool(a == b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    if tolerance == 0 or a.dtype.kind != "f":
        return a.tobytes() == b.tobytes()
    return np.allclose(a, b, rtol=tolerance, atol=1e-12, equal_nan=True)


def assert_same(a: Path, b: Path, tolerance: float = 0.0) -> None:
    """The two files agree, apart from when and where they were made: to the last bit, or within a relative tolerance."""
    left, right = contents(a), contents(b)
    assert left.keys() == right.keys(), sorted(left.keys() ^ right.keys())[:8]
    differing = [name for name in left if not agree(left[name], right[name], tolerance)]
    if tolerance > 0:
        differing = [name for name in differing if name != "summary@sha256"]
    assert not differing, f"{len(differing)} places differ: {differing[:8]}"
