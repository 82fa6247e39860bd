"""scripts/wasted_bits.py: the limit by hand, and that no preset on normal data goes below it."""

from __future__ import annotations

import subprocess
import sys

from kvlab_program import REPOSITORY, Kvlab

SCRIPT = REPOSITORY / "scripts/wasted_bits.py"
# 512 tokens: the mean squared values of a sample are within 1% of their expectation, 0.01 bits.
DATA = "{source: synthetic, pattern: gaussian, tokens: 512, kv_heads: 2, q_heads: 2, head_dim: 128"
METHODS = "[int2_naive, kivi, oscar_ots, oscar_cov, quarot, turboquant_mse2, int8, fp8_e4m3, mxfp4, nvfp4]"


def test_no_preset_beats_the_limit(kvlab: Kvlab) -> None:
    (kvlab.folder / "normals.yaml").write_text(
        f"schema: 1\ndataset: {DATA}}}\ncalibration: {DATA}, passage: 1}}\nmethods: {METHODS}\n"
        "measure: [error, memory]\nprobes: {count: 8}\n", encoding="utf-8")  # fmt: skip
    kvlab.ok("run", "normals.yaml", "--out", "normals.h5")
    done = subprocess.run([sys.executable, str(SCRIPT), "normals.h5"], cwd=kvlab.folder, capture_output=True, text=True, check=True)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()[2:]]
    wasted = {label: float(last) for label, *_, last in lines}
    assert len(wasted) == 10
    assert list(wasted.values()) == sorted(wasted.values())
    assert min(wasted.values()) > 0
    # D07: a group of 128 has an error of 0.2501, which takes 1.00 bits, and holds 2.25.
    assert abs(wasted["int2_naive"] - 1.25) < 0.03
