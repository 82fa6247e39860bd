"""One kvlab.results/1 file as pandas frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd

from kvlab_results.errors import Refused

SCHEMA = "kvlab.results/1"

# Columns of /summary that are neither a metric (these have a unit) nor an axis of a sweep.
IDENTITY = ("cell", "row", "status", "reason", "method", "label", "dataset", "text", "layer", "seed", "seed_used",
            "backend", "warnings", "hist_tokens_key", "hist_tokens_value", "window_tokens_key", "window_tokens_value")
# What says which row of the summary a row of `heads` or `timings` belongs to.
_WHOSE = ("row", "cell", "label", "method", "dataset", "layer", "seed", "backend")
# Attributes of a cell.
_PROVENANCE = ("status", "reason", "started", "seconds", "code_version")
# Metrics that are stored per query head; the other ones with a value a head are per KV head.
_QUERY = ("logit_", "attn_", "out_")


def read(path: str | Path) -> Results:
    """Opens a results file. Raises Refused where there is none or it is something else."""
    return Results(path)


class Results:
    """A results file. Frames are read when they are first asked for; the file is not kept open."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise Refused(f"{path}: there is no such file")
        schema = self._open(lambda file: file.attrs.get("schema", "none"))
        if schema != SCHEMA:
            raise Refused(f"{path}: expected schema {SCHEMA}, found {schema}")

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row a cell and sweep point: who it is, its status and every metric (NaN where not measured)."""
        return self._open(lambda file: pd.DataFrame({name: _column(data) for name, data in file["summary"].items()}))

    @cached_property
    def complete(self) -> pd.DataFrame:
        """The rows of `summary` that have numbers."""
        return self.summary[self.summary["status"] == "complete"]

    @cached_property
    def units(self) -> dict[str, str]:
        """Metric to its unit: "", "bits", "bytes", "nats", "us"."""
        return self._open(lambda file: {name: str(data.attrs["unit"]) for name, data in file["summary"].items()
                                        if "unit" in data.attrs})

    @cached_property
    def axes(self) -> list[str]:
        """Columns of `summary` that a sweep, or a benchmark's name, varies."""
        names = [name for name in self.summary if name not in self.units and name not in IDENTITY]
        return [name for name in names if self.summary[name].nunique() > 1]

    @cached_property
    def passages(self) -> pd.Series:
        """What each row of `summary` is a sample of: its dataset; synthetic data have a passage for each seed that draws
        them."""
        summary = self.summary
        drawn = summary["seed_used"].astype(bool)
        if drawn.any():
            configs = self.configs()
            drawn &= summary["cell"].map(lambda cell: (configs.get(cell, {}).get("dataset") or {}).get("source") == "synthetic")
        return summary["dataset"].where(~drawn, summary["dataset"] + " seed " + summary["seed"].astype(str))

    def measured(self, metric: str) -> bool:
        """Whether any row has a number for this metric."""
        return metric in self.units and bool(self.summary[metric].notna().any())

    @cached_property
    def heads(self) -> pd.DataFrame:
        """One row for each row of the summary, metric and head: columns `metric`, `of` ("kv" or "query"), `head`, `value`."""
        return self.by_head()

    def by_head(self, metric: str | None = None) -> pd.DataFrame:
        """The rows of `heads` of one metric, which is quicker than all of them."""
        def rows(name: str, array: np.ndarray) -> pd.DataFrame | None:
            if array.ndim != 1:
                return None  # one number a layer
            of = "query" if name.startswith(_QUERY) else "kv"
            return pd.DataFrame({"metric": name, "of": of, "head": np.arange(array.size), "value": array})

        return self._by_cell("metrics", ("metric", "of", "head", "value"), rows, metric)

    @cached_property
    def timings(self) -> pd.DataFrame:
        """One row for each row of the summary and timed run: columns `metric` ("decode_us", …), `run`, `us`."""
        return self._by_cell("samples", ("metric", "run", "us"), lambda name, array: pd.DataFrame(
            {"metric": name, "run": np.arange(array.size), "us": array / 1e3}))

    @cached_property
    def provenance(self) -> pd.DataFrame:
        """One row a cell: when, how long, by which code, on which machine and from which inputs."""
        def of(group: h5py.Group) -> dict[str, Any]:
            config = json.loads(_text(group["config"]))
            row = {name: group.attrs.get(name) for name in _PROVENANCE}
            for part in ("dataset", "calibration"):
                for key in ("path", "sha256"):
                    row[f"{part}_{key}"] = (config.get(part) or {}).get(key)
            return row

        rows = self._open(lambda file: {cell: of(group) for cell, group in file["cells"].items()})
        columns = [*_PROVENANCE, *(f"{part}_{key}" for part in ("dataset", "calibration") for key in ("path", "sha256"))]
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=None if rows else columns).rename_axis("cell").reset_index()
        machine = {name: value for name, value in self.run.items() if name not in frame}
        return frame.assign(**{name: machine[name] for name in sorted(machine)})

    @cached_property
    def run(self) -> dict[str, str]:
        """The attributes of the file: name, created, argv, host, cpu, gpu, code_version, library versions."""
        return self._open(lambda file: {name: str(value) for name, value in file.attrs.items()})

    @cached_property
    def experiment(self) -> str:
        """The experiment file after includes and --set, as YAML."""
        return self._open(lambda file: _text(file["experiment/resolved"]))

    def config(self, cell: str) -> dict[str, Any]:
        """The resolved configuration of a cell."""
        return self._open(lambda file: json.loads(_text(self._cell(file, cell)["config"])))

    def configs(self) -> dict[str, dict[str, Any]]:
        """Cell to its resolved configuration."""
        return self._open(lambda file: {cell: json.loads(_text(group["config"]))
                                        for cell, group in file["cells"].items()})

    def arrays(self, cell: str, group: str) -> dict[str, np.ndarray]:
        """The arrays of a cell's group: "metrics", "samples", "tokens", "rotation", "center"; empty where it has none.

        `tokens` (by `measure: [tokens]`) has k_se, v_se, k_norm, v_norm [B, Hkv, T], NaN where a token is never
        quantized; k_se_channels, v_se_channels [B, Hkv, blocks of 32 tokens, d]; position [P]; out_se, out_ss
        [B, Hq, P].
        """
        return self.arrays_of([cell], group)[cell]

    def arrays_of(self, cells: Iterable[str], group: str,
                  names: Collection[str] | None = None) -> dict[str, dict[str, np.ndarray]]:
        """`arrays` of many cells, read at once; of those of `names` alone where given."""
        def arrays(file: h5py.File, cell: str) -> dict[str, np.ndarray]:
            stored = self._cell(file, cell).get(group, {})
            return {name: stored[name][()] for name in stored if names is None or name in names}

        return self._open(lambda file: {cell: arrays(file, cell) for cell in cells})

    def _cell(self, file: h5py.File, cell: str) -> h5py.Group:
        if cell not in file["cells"]:
            raise Refused(f"{self.path}: there is no cell {cell}")
        return file["cells"][cell]

    def _by_cell(self, group: str, columns: tuple[str, ...],
                 frame: Callable[[str, np.ndarray], pd.DataFrame | None], only: str | None = None) -> pd.DataFrame:
        """`frame` of every array (or of the one named) of a group of every cell, once for each row of the summary that has the
        cell: labels and sweep points of one configuration share it."""
        def frames(file: h5py.File) -> list[pd.DataFrame]:
            found = []
            for cell, stored in file["cells"].items():
                arrays = stored.get(group, {})
                for name in arrays if only is None else {only} & set(arrays):
                    if (made := frame(name, arrays[name][()])) is not None:
                        found.append(made.assign(cell=cell))
            return found

        made = self._open(frames)
        whose = self.summary[list(dict.fromkeys((*_WHOSE, *self.axes)))]
        if not made:
            return whose.iloc[:0].reindex(columns=[*whose, *columns])
        return whose.merge(pd.concat(made, ignore_index=True), on="cell")

    def _open(self, use: Callable[[h5py.File], Any]) -> Any:
        try:
            with h5py.File(self.path) as file:
                return use(file)
        except OSError as error:
            raise Refused(f"{self.path}: not a readable HDF5 file ({error})") from None
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"{self.path}: not a whole {SCHEMA} file ({error})") from None


def _text(data: h5py.Dataset) -> str:
    return data.asstr()[()]


def _column(data: h5py.Dataset) -> np.ndarray:
    return data.asstr()[:] if data.dtype.kind == "O" else data[:]
