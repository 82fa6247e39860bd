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
    write(kvlab.folder, dataset=[synthetic(), synthetic(head_dim=80)], methods=["bf16", "int2_naive"], backend="cpu")
    reason = "backends cpu and cuda: a head of 80 channels has no kernel, one of 64, 128 and 256 has"
    plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json").out)
    assert [(cell["state"], cell["reason"]) for cell in plan["cells"]] == [("run", "")] * 2 + [("unsupported", reason)] * 2
    assert "2 cells complete, 2 unsupported" in kvlab.ok("run", "small.yaml").out
    assert [row["reason"] for row in rows(kvlab.folder / "small.h5")] == ["", "", reason, reason]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nothing_left_to_run_is_an_error_on_every_backend(backend: str, kvlab: Kvlab) -> None:
    """A group that does not divide the head, and data that a backend has no kernel for, end alike."""
    write(kvlab.folder, dataset=synthetic(dtype="fp32"), backend=backend,
          methods=["kivi"] if backend == "cpu" else [{"use": "kivi", "set": {"value.codec.group": 24}}])
    words = {"cpu": "float32 data have no kernel, windows hold 16 bits", "reference": "24"}
    outcome = kvlab.refused("run", "small.yaml")
    assert "nothing is left to run" in outcome.err and words[backend] in outcome.err


def test_nothing_that_came_out_is_an_error_too(kvlab: Kvlab) -> None:
    """What only computing shows, here a calibration too short to learn from; other shards may have more."""
    write(kvlab.folder, methods=["optr"], calibration=synthetic(passage=1), dataset=synthetic())
    assert kvlab("run", "small.yaml").code == 2
    (row,) = rows(kvlab.folder / "small.h5")
    assert row["status"] == "unsupported" and "too short" in row["reason"]
    assert kvlab("run", "small.yaml", "--shard", "1/1").code == 2
    assert kvlab("run", "small.yaml", "--shard", "2/2", "--out", "second.h5").code == 0


def test_cuda_without_a_gpu_is_refused_before_anything_runs(kvlab: Kvlab) -> None:
    if has_gpu(kvlab):
        pytest.skip("a GPU is here")
    write(kvlab.folder)
    outcome = kvlab.refused("run", "small.yaml", "--backend", "cuda")
    assert re.search(r"backend cuda is not available here: .{10}", outcome.err)
    assert len(outcome.mistakes) == 1
    assert kvlab.ok("validate", "small.yaml", "--set", "backend=cuda").out


def test_a_dry_run_says_that_nothing_can_run_here(kvlab: Kvlab) -> None:
    """The listing is what was asked for, so this is a warning behind it; stdout has the listing alone."""
    if has_gpu(kvlab):
        pytest.skip("a GPU is here")
    write(kvlab.folder)
    text, listed = (kvlab.ok("run", "small.yaml", "--dry-run", "--backend", "cuda", *more) for more in ([], ["--json"]))
    warning = r"kvlab: warning: nothing of this can run here: backend cuda is not available here: .{10,}\n"
    assert re.fullmatch(warning, text.err) and re.fullmatch(warning, listed.err)
    assert len(text.out.splitlines()) == 5 and len(json.loads(listed.out)["cells"]) == 4
    assert kvlab.ok("run", "small.yaml", "--dry-run", "--backend", "cpu").err == ""


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
