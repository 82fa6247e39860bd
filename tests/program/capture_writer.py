"""Writes kvlab.capture/1 as contract section 6 describes it, from plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

Layer = dict[str, np.ndarray]


def random_layer(seed: int, tokens: int = 256, positions: np.ndarray | None = None, q_heads: int = 4,
                 kv_heads: int = 2, head_dim: int = 64) -> Layer:
    """q, k, v of normals; the queries are those of `positions`, by default all."""
    rng = np.random.default_rng(seed)
    k = rng.standard_normal((1, kv_heads, tokens, head_dim)).astype(np.float32)
    v = rng.standard_normal((1, kv_heads, tokens, head_dim)).astype(np.float32)
    q = rng.standard_normal((1, q_heads, tokens, head_dim)).astype(np.float32)
    return {"q": q if positions is None else q[:, :, positions], "k": k, "v": v}


def write_capture(path: Path, layers: dict[int, Layer], positions: np.ndarray | None = None,
                  token_ids: np.ndarray | None = None, **attributes: Any) -> Path:
    """One sequence; `attributes` replace those of the root, None takes one out."""
    first = next(iter(layers.values()))
    tokens = first["k"].shape[2]
    root = {
        "schema": "kvlab.capture/1",
        "model": "test",
        "n_q_heads": first["q"].shape[1],
        "n_kv_heads": first["k"].shape[1],
        "head_dim": first["k"].shape[3],
        "rope": "post",
        "text_sha256": "0" * 64,
        "created_by": "tests/program",
    } | attributes
    with h5py.File(path, "w") as file:
        for name, value in root.items():
            if value is not None:
                file.attrs[name] = value
        ids = np.arange(tokens) if token_ids is None else token_ids
        file["tokens"] = ids.astype(np.int32)[None]
        file["positions"] = (np.arange(tokens) if positions is None else positions).astype(np.int32)
        for number, arrays in layers.items():
            group = file.create_group(f"layer_{number:03}")
            group.attrs["layer"] = number
            for name, array in arrays.items():
                group[name] = array
    return path
