"""Calibration sets and rotation files that cannot serve: they are told, and no NaN passes for a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from capture_writer import Layer, random_layer, write_capture
from experiment_text import write
from kvlab_program import Kvlab
from results_file import rows
from test_before_rope import THETA, turned

DIM = 16


def layer(seed: int, tokens: int = 300, **changes: Any) -> Layer:
    """Everything that some method asks for, at d = 16."""
    arrays = random_layer(seed, tokens, head_dim=DIM)
    rng = np.random.default_rng(seed + 100)
    return arrays | {
        "k_pre": arrays["k"],
        "k": turned(arrays["k"]),
        "w_o": rng.standard_normal((32, 4 * DIM)).astype(np.float32),
        "grad_k": rng.standard_normal(arrays["k"].shape).astype(np.float32),
        "grad_v": rng.standard_normal(arrays["k"].shape).astype(np.float32),
        "hidden_absmax": np.abs(rng.standard_normal((1, tokens))).astype(np.float32),
    } | changes


def capture(path: Path, arrays: Layer, first_token: int = 0) -> None:
    write_capture(path, {0: arrays}, token_ids=np.arange(first_token, first_token + arrays["k"].shape[2]),
                  rope_theta=THETA, rope_layout="half")


def measured(kvlab: Kvlab, methods: list[Any], evaluated: Layer | None = None, **changes: Any) -> list[dict[str, Any]]:
    """Rows of a run over one layer, calibrated on another text with these changes."""
    capture(kvlab.folder / "kv.h5", layer(1) if evaluated is None else evaluated)
    capture(kvlab.folder / "calibration.h5", layer(2, **changes), 5000)
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=methods,
          calibration={"source": "capture", "path": "calibration.h5"}, measure=["error", "attention", "memory"])
    (kvlab.folder / "small.h5").unlink(missing_ok=True)
    kvlab("run", "small.yaml")
    return rows(kvlab.folder / "small.h5")


def test_gradients_weigh_whatever_their_size(kvlab: Kvlab) -> None:
    """A loss has no unit: the same row at 1, 1e30 and 1e-30; all zeros are told apart from weights."""
    (plain,) = measured(kvlab, ["kvquant_nuq2"])
    for factor in (2.0**99, 2.0**-99):
        scaled = {name: layer(2)[name] * np.float32(factor) for name in ("grad_k", "grad_v")}
        (row,) = measured(kvlab, ["kvquant_nuq2"], **scaled)
        assert row["status"] == "complete" and row["k_mse"] == plain["k_mse"] and row["v_mse"] == plain["v_mse"]
    zeros = np.zeros_like(layer(2)["grad_k"])
    (row,) = measured(kvlab, ["kvquant_nuq2"], grad_k=zeros, grad_v=zeros)
    assert "key: k-means is unweighted, grad_k of the calibration set is zero" in row["warnings"]
    assert row["k_mse"] != plain["k_mse"]


def test_hidden_states_that_are_no_numbers_fail(kvlab: Kvlab) -> None:
    hidden = layer(1)["hidden_absmax"]
    hidden[0, 7] = np.nan
    (row,) = measured(kvlab, ["rotatekv"], layer(1, hidden_absmax=hidden))
    assert row["status"] == "failed" and "hidden_absmax holds 1 value that is NaN or Inf" in row["reason"]


@pytest.mark.parametrize("method", ["nova_kv", "wush_kv", "oscar_cov", "kvquant_nuq2", "rotatekv", "oscar2"])
def test_a_calibration_set_of_zeros_gives_numbers_or_a_reason(kvlab: Kvlab, method: str) -> None:
    zeros = {name: np.zeros_like(array) for name, array in layer(2).items()}
    (row,) = measured(kvlab, [method], **zeros)
    if row["status"] == "complete":
        assert np.isfinite(row["k_mse"]) and np.isfinite(row["out_rel"])
    else:
        assert row["status"] == "failed" and "calibration set" in row["reason"], row["reason"]


def test_zero_queries_are_named(kvlab: Kvlab) -> None:
    (row,) = measured(kvlab, ["wush_kv"], q=np.zeros_like(layer(2)["q"]))
    assert row["status"] == "failed" and "basis: balanced: the loss (queries, or w_o)" in row["reason"], row["reason"]
    assert "linalg" not in row["reason"]


def test_keys_that_rope_does_not_give_are_named_with_their_file(kvlab: Kvlab) -> None:
    (row,) = measured(kvlab, [{"use": "int2_naive", "set": {"key.space": "pre_rope"}}],
                      layer(1, k_pre=layer(7)["k_pre"]))
    assert row["status"] == "failed" and "kv.h5: layer 0: RoPE turns k_pre" in row["reason"]


def rotation_file(kvlab: Kvlab, data: str, name: str = "r.h5") -> dict[str, Any]:
    kvlab.ok("calibrate", "oscar_cov_centered", "--data", data, "--out", name)
    return {"use": "quarot_token", "label": "file", "set": {"key.rotate": f"file:{name}", "value.rotate": f"file:{name}"}}


def test_a_rotation_made_from_the_evaluation_set_is_a_warning(kvlab: Kvlab) -> None:
    measured(kvlab, ["bf16"])
    for data, shared in (("kv.h5", True), ("calibration.h5", False)):
        (row,) = measured(kvlab, [rotation_file(kvlab, data, f"of_{data}")])
        assert row["status"] == "complete"
        assert ("was calibrated on the evaluation set" in row["warnings"]) == shared
        # The centre that comes with it is told too: the recipe says center: none.
        assert f"of_{data} is subtracted" in row["warnings"]


def test_a_rotation_file_that_is_not_finite_is_refused(kvlab: Kvlab) -> None:
    measured(kvlab, ["bf16"])
    use = rotation_file(kvlab, "calibration.h5")
    with h5py.File(kvlab.folder / "r.h5", "r+") as file:
        del file.attrs["sha256"]  # as files of other programs
        file["layer_000/key/center"][0, 0] = np.inf
    (row,) = measured(kvlab, [use])
    assert row["status"] == "failed"
    assert "r.h5:/layer_000/key/center: the center holds NaN or infinite values" in row["reason"], row["reason"]


LEARNED = {
    "kvquant_nuq2": {"key/codebook", "value/codebook"},
    "nova_kv": {"key/basis", "key/center", "key/codebook", "value/rotation"},
    "wush_kv": {"key/basis", "value/basis"},
    "rotatekv": {"key/order"},
    "oscar_cov_centered": {"key/center", "key/rotation", "value/rotation"},
}


@pytest.mark.parametrize("method", LEARNED)
def test_calibrate_keeps_what_the_method_learned(kvlab: Kvlab, method: str) -> None:
    """And says what of it `rotate: file:` does not take; both other formats hold it or say why not."""
    capture(kvlab.folder / "kv.h5", layer(2, 1200))
    said = kvlab.ok("calibrate", method, "--data", "kv.h5", "--out", "r.h5").err
    found: set[str] = set()
    with h5py.File(kvlab.folder / "r.h5") as file:
        file["layer_000"].visititems(lambda name, item: found.add(name) if isinstance(item, h5py.Dataset) else None)
    assert found == LEARNED[method]
    assert ("takes rotations with their centres" in said) == (method != "oscar_cov_centered")
    assert kvlab.ok("inspect", "r.h5", "--verify").out.splitlines()[-1].startswith("verified: ")
    for dtype in ("fp64", "fp16"):
        kvlab.ok("convert", "r.h5", f"{dtype}.safetensors", "--dtype", dtype)
        kvlab.ok("convert", f"{dtype}.safetensors", f"{dtype}.h5")
    with h5py.File(kvlab.folder / "r.h5") as file, h5py.File(kvlab.folder / "fp64.h5") as back:
        for name in found:
            np.testing.assert_array_equal(file["layer_000"][name][()], back["layer_000"][name][()])
    if "key/rotation" not in found:
        assert "has no key rotation to write" in kvlab.refused("convert", "r.h5", "r.pt", "--side", "key").err


def test_a_file_of_nothing_is_not_verified(kvlab: Kvlab) -> None:
    with h5py.File(kvlab.folder / "empty.h5", "w") as file:
        file.attrs["schema"] = "kvlab.rotation/1"
        file.create_group("layer_000/key")
    outcome = kvlab("inspect", "empty.h5", "--verify")
    assert outcome.code == 1 and "not verified: 0 values checked" in outcome.out
    assert "holds nothing that was learned" in kvlab.refused("convert", "empty.h5", "out.safetensors").err


def test_needs_and_published_bits_are_data(kvlab: Kvlab) -> None:
    methods = {one["name"]: one for one in json.loads(kvlab.ok("list", "methods", "--json").out)}
    assert all(isinstance(one["published_bits"], (int, float, type(None))) for one in methods.values())
    assert any(one["published_bits"] is None for one in methods.values())
    assert methods["wush_kv"]["needs"] == "calibration with w_o"
    assert methods["oscar_cov"]["needs"] == "calibration"
