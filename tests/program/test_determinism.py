"""Same seed, same numbers: to the last bit on one machine whatever --jobs says, to 1e-6 with another number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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
    """One experiment with every kind of calibration, run three times: twice alike, once with one cell at a time.

    Each run makes its own calibrations: they are kept in a folder beside the output.
    """
    folder = tmp_path_factory.mktemp("determinism")
    write(folder, methods=METHODS, dataset=synthetic(tokens=512), calibration=synthetic(tokens=1024, passage=1),
          seeds=[0, 1])
    kvlab = Kvlab(folder)
    for name, jobs in (("first", 2), ("again", 2), ("one", 1)):
        kvlab.ok("run", "small.yaml", "--jobs", jobs, "--out", f"{name}/small.h5")
    return folder


@contextmanager
def one_core() -> Iterator[None]:
    """What is started within may use one core, so that a cell has one thread."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def test_twice_is_equal_to_the_last_bit(folder: Path) -> None:
    assert_same(folder / "first/small.h5", folder / "again/small.h5")


def test_jobs_change_no_bit(folder: Path) -> None:
    assert_same(folder / "first/small.h5", folder / "one/small.h5")


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_another_number_of_threads_is_equal_to_1e_6(tmp_path: Path, method: object) -> None:
    """A cell alone has all cores."""
    write(tmp_path, methods=[method], dataset=synthetic(tokens=512), calibration=synthetic(tokens=1024, passage=1))
    kvlab = Kvlab(tmp_path)
    kvlab.ok("run", "small.yaml", "--out", "all/small.h5")
    with one_core():
        kvlab.ok("run", "small.yaml", "--out", "one/small.h5")
    two, one = summary(tmp_path / "all/small.h5"), summary(tmp_path / "one/small.h5")
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
