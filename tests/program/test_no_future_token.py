"""Decoding sees no future token: changing token j changes nothing at probes before j (issue, section 7; D20).

The program is fed two captures that differ in one token. Every window rule must give equal numbers at every probe before
that token, and must show the change from it on, or the test would prove nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import write
from kvlab_program import Kvlab
from results_file import arrays, rows

TOKENS = 200
CHANGED = (5, 64, 131, 199)  # in the first group, after a flush, within a group, last
METHODS = [
    {"use": "kcvt_base", "label": "block", "set": {"window.recent": 40, "window.sink": 3, "window.flush": "block"}},
    {"use": "oscar_ots", "label": "full", "set": {"window.recent": 64, "window.flush": "full"}},
    {"use": "kivi", "label": "kivi", "set": {"window.recent": 32}},
    {"use": "quarot_windows", "label": "ring", "set": {
        "window.sink": 4, "window.recent": 24, "window.flush": "ring", "group": 64}},
    {"use": "int2_naive", "label": "naive"},
    {"use": "kcvt_base", "label": "dynamic", "set": {
        "window.flush": "dynamic", "window.tni": 1.5, "window.min": 8, "window.max": 40}},
    {"use": "kivi", "label": "pool", "set": {"window.recent": 32, "protect.kind": "low_norm", "protect.tokens": 4}},
    {"use": "int2_naive", "label": "first", "set": {"protect.kind": "first", "protect.tokens": 3}},
    {"use": "bf16", "label": "streaming", "set": {"evict.kind": "streaming", "evict.sink": 2, "evict.recent": 30}},
    {"use": "int2_naive", "label": "heavy", "set": {
        "evict.kind": "heavy_hitter", "evict.sink": 1, "evict.recent": 20, "evict.heavy": 10}},
]


def probe_errors(folder: Path, name: str, layer: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Squared error and norm of the output at each of the positions 0..T-1, by method: [2, Hq, P]."""
    write_capture(folder / f"{name}.h5", {0: layer})
    write(folder, name=name, output=f"{name}-results.h5", dataset={"source": "capture", "path": f"{name}.h5"},
          methods=METHODS, probes={"placement": "all"}, measure=["tokens"])
    Kvlab(folder).ok("run", "small.yaml", "--jobs", 1)
    results = folder / f"{name}-results.h5"
    return {row["label"]: np.stack([tokens["out_se"][0], tokens["out_ss"][0]])
            for row, tokens in zip(rows(results), arrays(results, "tokens"), strict=True)}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("future")
    return folder, probe_errors(folder, "plain", random_layer(0, TOKENS))


@pytest.mark.parametrize("token", CHANGED)
def test_probes_before_a_changed_token_stay_the_same(token: int, plain: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Twice: the token grows a hundredfold, which would move the range of any group that it belongs to."""
    folder, before = plain
    layer = random_layer(0, TOKENS)
    for side in ("k", "v"):
        layer[side][:, :, token] *= 100
    after = probe_errors(folder, f"changed{token}", layer)
    for label, errors in before.items():
        assert errors.shape == (2, 4, TOKENS)
        np.testing.assert_array_equal(after[label][:, :, :token], errors[:, :, :token], err_msg=label)
        assert (after[label][:, :, token] != errors[:, :, token]).any(), f"{label}: the change shows at its own probe"


def test_a_shorter_capture_agrees_with_the_start_of_a_longer_one(plain: tuple[Path, dict[str, np.ndarray]]) -> None:
    """D20: how much of the sequence is there at once changes nothing that came before. Within rounding: other sizes."""
    folder, before = plain
    layer = random_layer(0, TOKENS)
    short = {name: array[:, :, :150] for name, array in layer.items()}
    after = probe_errors(folder, "short", short)
    for label, errors in before.items():
        np.testing.assert_allclose(after[label], errors[:, :, :150], rtol=1e-9, atol=1e-20, err_msg=label)


def test_windows_hold_the_tokens_they_promise(plain: tuple[Path, dict[str, np.ndarray]]) -> None:
    """Where nothing is quantized yet the error is exactly 0 (contract section 4.3), and not a step longer."""
    _, before = plain
    zero = {label: int(np.argmax(errors[0].sum(axis=0) > 0)) for label, errors in before.items()}
    # First p with b > s0.  block: s0=3, G=32, R=40: p+1-3-40 >= 32.  full: p >= 64.  kivi: values from p > 32, which is
    # before keys at p >= 32 + 0.  ring: s0=4, unit 8: p+1-4-24 >= 8.  naive: R=0 keeps the own token: p+1-1 >= 1.
    # dynamic: blocks of normals are even, so 8 tokens behind 32: p + 1 >= 40.  pool: as kivi, four tokens apart.
    # first: tokens 0, 1, 2 stay: p+1-1 >= 4.  streaming: the 33rd token drops one.  heavy: as naive.
    assert zero == {"block": 74, "full": 64, "kivi": 32, "ring": 35, "naive": 1,
                    "dynamic": 39, "pool": 32, "first": 4, "streaming": 32, "heavy": 1}
