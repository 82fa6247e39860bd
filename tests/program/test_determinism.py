"""Same seed, same numbers: to the last bit on one machine, to 1e-6 with another number of threads (issue, section 4)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab
from results_file import assert_same, summary

METHODS = ["kivi", "int2_naive_windows", "oscar_ots", "oscar_cov_centered", "oscar_cov_exact",
           {"use": "optr", "set": {"calibrate.steps": 2}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One experiment with every kind of calibration, run three times: twice alike, once with other threads.

    Each run makes its own calibrations: they are kept in a folder beside the output.
    """
    folder = tmp_path_factory.mktemp("determinism")
    write(folder, methods=METHODS, dataset=synthetic(tokens=512), calibration=synthetic(tokens=1024, passage=1),
          seeds=[0, 1])
    kvlab = Kvlab(folder)
    for name, jobs in (("first", 2), ("again", 2), ("one", 1)):
        kvlab.ok("run", "small.yaml", "--jobs", jobs, "--out", f"{name}/small.h5")
    return folder


def test_twice_is_equal_to_the_last_bit(folder: Path) -> None:
    assert_same(folder / "first/small.h5", folder / "again/small.h5")


def test_another_number_of_threads_is_equal_to_1e_6(folder: Path) -> None:
    two, one = summary(folder / "first/small.h5"), summary(folder / "one/small.h5")
    assert two.keys() == one.keys()
    for name, values in two.items():
        if values.dtype.kind == "f":
            np.testing.assert_allclose(one[name], values, rtol=1e-6, atol=1e-12, err_msg=name)
        else:
            assert values.tolist() == one[name].tolist(), name


def test_another_seed_is_another_sample(folder: Path) -> None:
    table = summary(folder / "first/small.h5")
    for method in ("kivi", "oscar_ots"):
        first, second = table["wo_rel"][table["method"] == method]
        assert first != second
