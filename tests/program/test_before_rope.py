"""Methods that quantize keys before RoPE: the harness turns what it decoded, and checks RoPE against the captured keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from capture_writer import Layer, random_layer, write_capture
from experiment_text import write
from kvlab_program import Kvlab
from results_file import rows

THETA = 10000.0


def turned(x: np.ndarray) -> np.ndarray:
    """RoPE of [1, H, T, d], channel i with channel i + d/2."""
    tokens, half = x.shape[2], x.shape[3] // 2
    angle = np.arange(tokens)[:, None] * THETA ** (-np.arange(half) / half)
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(np.float32)


def layer(seed: int) -> Layer:
    arrays = random_layer(seed, 128)
    return arrays | {"k_pre": arrays["k"], "k": turned(arrays["k"])}


def measured(kvlab: Kvlab, arrays: Layer, methods: list[Any], **attributes: Any) -> list[dict[str, Any]]:
    roped = {"rope_theta": THETA, "rope_layout": "half"} | attributes
    write_capture(kvlab.folder / "kv.h5", {0: arrays}, **roped)
    write_capture(kvlab.folder / "calibration.h5", {0: random_layer(9, 128)}, np.arange(128), np.arange(500, 628),
                  **roped)
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=methods,
          calibration={"source": "capture", "path": "calibration.h5"}, measure=["error", "attention"])
    (kvlab.folder / "small.h5").unlink(missing_ok=True)
    kvlab("run", "small.yaml")
    return rows(kvlab.folder / "small.h5")


def test_before_rope_is_measured_in_the_space_of_the_captured_keys(kvlab: Kvlab) -> None:
    fine = {"key.space": "pre_rope", "key.codec.bits": 8, "value.codec.bits": 8}
    before, exact = measured(kvlab, layer(1), [
        {"use": "int2_naive", "label": "2 bits", "set": {"key.space": "pre_rope"}},
        {"use": "int2_naive", "label": "8 bits", "set": fine}])
    assert before["status"] == exact["status"] == "complete"
    assert 0.1 < before["k_nmse"] < 0.5 and exact["k_nmse"] < 1e-4 and exact["out_rel"] < 0.05


def test_what_a_capture_lacks_is_an_unsupported_row(kvlab: Kvlab) -> None:
    whole = layer(1)
    bare = {name: array for name, array in whole.items() if name != "k_pre"}
    pre_rope = {"use": "int2_naive", "set": {"key.space": "pre_rope"}}
    heavy = {"use": "h2o_int4", "set": {"evict.recent": 16, "evict.heavy": 16}}
    for arrays, attributes, says in ((bare, {}, "/layer_000/k_pre is missing"),
                                     (whole, {"rope_theta": None}, "has no attribute rope_theta"),
                                     (whole, {"rope_layout": None}, "has no attribute rope_layout"),
                                     (whole, {"rope_scaling": '{"rope_type": "dynamic"}'}, "rope_type 'dynamic'"),
                                     (whole, {"rope_scaling": '{"rope_type": "yarn"}'}, "rope_scaling has no number 'factor'")):
        first, second = measured(kvlab, arrays, [pre_rope, heavy], **attributes)
        assert first["status"] == "unsupported" and says in first["reason"], first["reason"]
        assert second["status"] == "complete"  # all queries are there
    (wrong, _) = measured(kvlab, whole, [pre_rope, heavy], rope_theta=500.0)
    assert wrong["status"] == "failed" and "RoPE turns k_pre into keys that are off k" in wrong["reason"]


def test_massive_tokens_come_from_the_hidden_states_else_from_positions(kvlab: Kvlab) -> None:
    arrays = layer(2)
    method = {"use": "rotatekv", "set": {"protect.tokens": 2, "key.codec.group": 64, "value.codec.group": 64}}
    (row,) = measured(kvlab, arrays, [method])
    assert row["status"] == "complete" and "position-selected" in row["warnings"]
    hidden = np.ones((1, 128), np.float32)
    hidden[0, [40, 90]] = 100
    (found,) = measured(kvlab, arrays | {"hidden_absmax": hidden}, [method])
    assert "position-selected" not in found["warnings"] and found["k_mse"] != row["k_mse"]


def test_a_calibration_set_without_k_pre_is_turned_back(kvlab: Kvlab) -> None:
    (row,) = measured(kvlab, layer(3), [{"use": "rotatekv", "set": {"protect.kind": "none"}}])
    assert row["status"] == "complete" and row["k_nmse"] < 0.5, row
