"""Cells that cannot be computed are told from numbers: status, reason, a dash (D93)."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import write
from kvlab_program import Kvlab, Outcome
from results_file import rows, states


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Three layers, of which layer 1 holds an Inf: the folder of a run over them, and how it ended."""
    folder = tmp_path_factory.mktemp("broken")
    layers = {number: random_layer(number) for number in range(3)}
    layers[1]["k"][0, 1, 77, 5] = np.inf
    write_capture(folder / "kv.h5", layers)
    write(folder, dataset={"source": "capture", "path": "kv.h5"}, methods=["bf16", "kivi"])
    return folder, Kvlab(folder)("run", "small.yaml")


def test_a_failing_cell_does_not_stop_the_others(broken: tuple[Path, Outcome]) -> None:
    folder, outcome = broken
    assert outcome.code == 1
    assert "4 cells complete, 2 failed" in outcome.out
    assert {(row["layer"], row["method"]): row["status"] for row in rows(folder / "small.h5")} == {
        (layer, method): "failed" if layer == 1 else "complete" for layer in range(3) for method in ("bf16", "kivi")}


def test_the_reason_names_the_place(broken: tuple[Path, Outcome]) -> None:
    """The dataset, how many values, and where the first one is; on stderr, in the row and in the cell."""
    folder, outcome = broken
    (reason,) = {row["reason"] for row in rows(folder / "small.h5") if row["status"] == "failed"}
    assert "kv.h5" in reason and "layer_001/k" in reason and "allow_nonfinite" in reason, reason
    assert reason in outcome.err
    with h5py.File(folder / "small.h5") as file:
        failed = [group for group in file["cells"].values() if group.attrs["status"] == "failed"]
        assert [group.attrs["reason"] for group in failed] == [reason, reason]
        assert all(json.loads(group["config"].asstr()[()])["dataset"]["layer"] == 1 for group in failed)


def test_failed_cells_have_no_numbers(broken: tuple[Path, Outcome]) -> None:
    folder, _ = broken
    for row in rows(folder / "small.h5"):
        numbers = [value for value in row.values() if isinstance(value, float)]
        assert all(np.isnan(numbers)) == (row["status"] == "failed")


def test_tables_print_a_dash(broken: tuple[Path, Outcome]) -> None:
    """A dash where nothing is complete; in CSV an empty field. A mean over less than the others is marked."""
    folder, _ = broken
    kvlab = Kvlab(folder)
    table = kvlab.ok("table", "small.h5", "--rows", "label", "--cols", "layer", "--value", "out_rel")
    lines = {line.split()[0]: line.split() for line in table.out.splitlines() if line.startswith(("bf16", "kivi"))}
    assert lines["kivi"][-3] == "-" and lines["bf16"][-3] == "-"  # layer 1 of 0, 1, 2, then the count of cells
    assert "failed" in table.out
    outcome = kvlab.ok("table", "small.h5", "--rows", "label", "--cols", "layer", "--value", "out_rel", "--format", "csv")
    records = {record["label"]: record for record in csv.DictReader(io.StringIO(outcome.out))}
    assert records["kivi"]["layer=1"] == "" and float(records["kivi"]["layer=0"]) > 0
    assert "failed" in outcome.err


def test_status_counts_them_with_the_reason(broken: tuple[Path, Outcome]) -> None:
    folder, _ = broken
    status = json.loads(Kvlab(folder).ok("status", "small.h5", "--json").out)
    assert status["states"]["failed"] == 2 and status["states"]["complete"] == 4
    assert status["reasons"][0]["status"] == "failed" and status["reasons"][0]["cells"] == 2


def test_failed_cells_are_tried_again(kvlab: Kvlab, broken: tuple[Path, Outcome]) -> None:
    """A second run computes the failed ones only; with the fault allowed they are other cells, and complete."""
    folder, _ = broken
    for name in ("small.yaml", "small.h5", "kv.h5"):
        (kvlab.folder / name).write_bytes((folder / name).read_bytes())
    again = kvlab("run", "small.yaml", "--json")
    assert again.code == 1
    outcome = json.loads(again.out)
    assert (outcome["reused"], outcome["complete"], outcome["failed"]) == (4, 4, 2)


def test_allow_nonfinite_counts_and_goes_on(kvlab: Kvlab, broken: tuple[Path, Outcome]) -> None:
    folder, _ = broken
    (kvlab.folder / "kv.h5").write_bytes((folder / "kv.h5").read_bytes())
    write(kvlab.folder, methods=["bf16", "kivi"],
          dataset={"source": "capture", "path": "kv.h5", "layers": [0, 1], "allow_nonfinite": True})
    kvlab.ok("run", "small.yaml")
    assert set(states(kvlab.folder / "small.h5").values()) == {"complete"}
    touched = [row for row in rows(kvlab.folder / "small.h5") if row["layer"] == 1]
    assert all("finite" in row["warnings"] for row in touched)
    assert not any("finite" in row["warnings"] for row in rows(kvlab.folder / "small.h5") if row["layer"] == 0)


def test_packed_backends_refuse_what_is_not_finite(kvlab: Kvlab) -> None:
    """What reference counts, kernels do not take: the row says so, also where nothing is quantized."""
    layers = {number: {name: x.astype(np.float16) for name, x in random_layer(number).items()} for number in range(2)}
    layers[1]["v"][0, 1, 77, 5] = np.nan
    write_capture(kvlab.folder / "kv.h5", layers)
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5", "allow_nonfinite": True},
          methods=["bf16", "kivi"], backend="cpu")
    kvlab.ok("run", "small.yaml")
    reason = "backends cpu and cuda: values that hold NaN or infinity have no kernel"
    assert {(row["layer"], row["method"]): (row["status"], row["reason"]) for row in rows(kvlab.folder / "small.h5")} == {
        (layer, method): ("unsupported", reason) if layer == 1 else ("complete", "")
        for layer in (0, 1) for method in ("bf16", "kivi")}


def test_d04_a_capture_that_overflows_fp16_parameters(kvlab: Kvlab) -> None:
    """One value of -1.25e5 in a float32 capture: everything stays finite and the element is counted as saturated."""
    layer = random_layer(0)
    layer["v"][0, 0, 10, 3] = -1.25e5
    write_capture(kvlab.folder / "kv.h5", {0: layer})
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=["int2_naive", "quarot", "kivi"])
    kvlab.ok("run", "small.yaml")
    for row in rows(kvlab.folder / "small.h5"):
        assert row["status"] == "complete" and row["nonfinite"] == 0 and np.isfinite(row["v_mse"]), row["method"]
        assert row["saturated"] >= (row["method"] != "quarot"), row["method"]


def test_a_float32_capture_reports_32_bits(kvlab: Kvlab) -> None:
    write_capture(kvlab.folder / "kv.h5", {0: random_layer(0)})
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=["bf16"])
    kvlab.ok("run", "small.yaml")
    (row,) = rows(kvlab.folder / "small.h5")
    assert row["bits_per_element"] == 32 and "32 bits" in row["warnings"]


def test_shared_tokens_are_a_warning_in_every_row(kvlab: Kvlab) -> None:
    """The calibration capture holds the evaluated text: every row that uses it says so, no other does."""
    write_capture(kvlab.folder / "kv.h5", {0: random_layer(0)}, token_ids=np.arange(256))
    write_capture(kvlab.folder / "same.h5", {0: random_layer(1)}, token_ids=np.roll(np.arange(256), 100))
    write_capture(kvlab.folder / "other.h5", {0: random_layer(2)}, token_ids=np.arange(1000, 1256))
    for name, shares in (("same", True), ("other", False)):
        write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=["kivi", "oscar_cov"],
              calibration={"source": "capture", "path": f"{name}.h5"}, output=f"{name}-results.h5")
        kvlab.ok("run", "small.yaml")
        told = {row["method"]: "calibration shares tokens" in row["warnings"]
                for row in rows(kvlab.folder / f"{name}-results.h5")}
        assert told == {"kivi": False, "oscar_cov": shares}
