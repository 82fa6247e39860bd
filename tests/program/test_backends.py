"""The backends as a user chooses them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import h5py
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab
from results_file import rows

PADDED = {"bits_per_element", "bits_at_8k", "bits_at_32k", "bits_at_128k", "bytes_padding"}


def has_gpu(kvlab: Kvlab) -> bool:
    backends = json.loads(kvlab.ok("list", "backends", "--json").out)
    return next(item["available"] for item in backends if item["name"] == "cuda")


def test_cpu_measures_what_reference_measures(kvlab: Kvlab, small: Path) -> None:
    write(kvlab.folder, measure=["error", "attention", "tni", "memory", "tokens"])
    kvlab.ok("run", "small.yaml", "--backend", "cpu")
    packed, reference = rows(kvlab.folder / "small.h5"), rows(small)
    assert len(packed) == len(reference) == 4
    for found, expected in zip(packed, reference, strict=True):
        assert found["backend"] == "cpu" and expected["backend"] == "reference"
        assert found["cell"] != expected["cell"]
        assert found["status"] == "complete"
        for name in ("k_mse", "v_nmse", "wo_rel", "attn_kl", "tni_ratio_in", "bytes_codes", "bytes_window"):
            if math.isnan(expected[name]):
                assert math.isnan(found[name]), name
            else:
                assert math.isclose(found[name], expected[name], rel_tol=2e-3, abs_tol=2e-6), name
        assert all(found[name] >= expected[name] for name in PADDED)


def test_rows_that_a_backend_lacks_say_why(kvlab: Kvlab) -> None:
    write(kvlab.folder, dataset=synthetic(head_dim=80), methods=["bf16", "int2_naive"], backend="cpu")
    outcome = kvlab.ok("run", "small.yaml")
    assert "2 unsupported" in outcome.out
    for row in rows(kvlab.folder / "small.h5"):
        assert row["status"] == "unsupported"
        assert row["reason"] == (
            "backends cpu and cuda: a head of 80 channels has no kernel, one of 64, 128 and 256 has")


def test_a_float32_capture_is_refused_in_a_sentence(kvlab: Kvlab) -> None:
    write(kvlab.folder, dataset=synthetic(dtype="fp32"), methods=["kivi"], backend="cpu")
    kvlab.ok("run", "small.yaml")
    (row,) = rows(kvlab.folder / "small.h5")
    assert row["reason"] == "backends cpu and cuda: float32 data have no kernel, windows hold 16 bits"


def test_cuda_without_a_gpu_is_refused_before_anything_runs(kvlab: Kvlab) -> None:
    if has_gpu(kvlab):
        pytest.skip("a GPU is here")
    write(kvlab.folder)
    outcome = kvlab.refused("run", "small.yaml", "--backend", "cuda")
    assert re.search(r"backend cuda is not available here: .{10}", outcome.err)
    assert len(outcome.mistakes) == 1
    assert kvlab.ok("validate", "small.yaml", "--set", "backend=cuda").out


def test_kernel_time_keeps_its_samples(kvlab: Kvlab) -> None:
    write(kvlab.folder, methods=["bf16", "oscar_ots"], measure=["kernel_time", "memory"], backend="cpu")
    outcome = kvlab.ok("run", "small.yaml", "--jobs", "2")
    assert "one cell at a time" in outcome.err
    with h5py.File(kvlab.folder / "small.h5") as file:
        for row in rows(kvlab.folder / "small.h5"):
            assert row["status"] == "complete"
            for name in ("encode_us", "decode_us"):
                samples = file[f"cells/{row['cell']}/samples/{name}"][:]
                assert len(samples) >= 5 and (samples > 0).all()
                ordered = sorted(samples)
                middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
                assert math.isclose(row[name], middle / 1e3, rel_tol=1e-9)
