"""scripts/metric_validity.py: rank correlations by hand, and its table from two small runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_model
from kvlab_program import REPOSITORY, Kvlab

SCRIPT = REPOSITORY / "scripts/metric_validity.py"
sys.path.append(str(SCRIPT.parent))  # of what it imports
spec = importlib.util.spec_from_file_location("metric_validity", SCRIPT)
validity = importlib.util.module_from_spec(spec)
spec.loader.exec_module(validity)


def test_ranks_of_equal_values_are_their_mean() -> None:
    np.testing.assert_array_equal(validity.ranks(np.array([3.0, 1.0, 3.0, 2.0])), [2.5, 0, 2.5, 1])


def test_correlations_by_hand() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert validity.spearman(x, x**3) == pytest.approx(1)
    assert validity.kendall(x, -x) == pytest.approx(-1)
    # Ranks 0 1 3 2: sum of squared differences 2, so 1 − 6·2/(4·15); one of six pairs is discordant.
    y = np.array([5.0, 6.0, 9.0, 8.0])
    assert validity.spearman(x, y) == pytest.approx(0.8)
    assert validity.kendall(x, y) == pytest.approx(4 / 6)
    # A tie in y: 5 concordant pairs, tau-b divides by √(6·5).
    assert validity.kendall(x, np.array([1.0, 2.0, 2.0, 3.0])) == pytest.approx(5 / np.sqrt(30))


def test_the_table(tmp_path: Path) -> None:
    tiny_model.make(tmp_path)
    kvlab = Kvlab(tmp_path)
    methods = "methods: [int2_naive, kivi, kcvt_base, quarot, oscar_ots]\n"
    (tmp_path / "model.yaml").write_text(
        "schema: 1\ndataset: {source: model, path: model, tokens: text.h5}\n" + methods)  # fmt: skip
    (tmp_path / "samples.yaml").write_text(
        "schema: 1\ndataset: {source: capture, path: calibration.h5}\nprobes: {count: 8}\n"
        "measure: [error, attention]\n" + methods)  # fmt: skip
    for name in ("model", "samples"):
        kvlab.ok("run", f"{name}.yaml", "--out", f"{name}.h5")
    argv = [sys.executable, str(SCRIPT), "model.h5", "samples.h5"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("5 methods, rank correlation with `dnll_tail`")
    for metric in ("wo_rel", "attn_kl", "k_nmse"):
        assert f"| `{metric}` | " in done.stdout
