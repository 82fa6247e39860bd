"""Experiment files for tests, small enough that a run takes a fraction of a second. JSON is YAML, so no YAML library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SYNTHETIC: dict[str, Any] = {
    "source": "synthetic", "pattern": "low_norm_sink", "tokens": 256, "kv_heads": 2, "q_heads": 4, "head_dim": 64}


def synthetic(**changes: Any) -> dict[str, Any]:
    return SYNTHETIC | changes


def experiment(**changes: Any) -> str:
    """The text of a small experiment, one line a key; a change of None takes a key out."""
    keys: dict[str, Any] = {
        "schema": 1,
        "name": "small",
        "dataset": SYNTHETIC,
        "methods": ["bf16", "kivi", "int2_naive", "oscar_ots"],
        "probes": {"count": 8, "placement": "strided"},
        "output": "small.h5",
    } | changes
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in keys.items() if value is not None]
    return "\n".join(lines) + "\n"


def write(folder: Path, file: str = "small.yaml", **changes: Any) -> Path:
    path = folder / file
    path.write_text(experiment(**changes), encoding="utf-8")
    return path
