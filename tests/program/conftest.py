"""Fixtures of the tests that run the program as a user does."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment_text import write
from kvlab_program import REPOSITORY, Kvlab, program_path


@pytest.fixture(scope="session", autouse=True)
def _program_is_built() -> None:
    if not program_path().is_file():
        pytest.exit("the program is not built: build it, or set KVLAB_PROGRAM to it", returncode=2)


@pytest.fixture
def kvlab(tmp_path: Path) -> Kvlab:
    """The program, running in the test's own folder."""
    return Kvlab(tmp_path)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a small run, for tests that only read: bf16, kivi, int2_naive and oscar_ots, all measures."""
    folder = tmp_path_factory.mktemp("small")
    write(folder, measure=["error", "attention", "tni", "memory", "tokens"])
    Kvlab(folder).ok("run", "small.yaml")
    return folder / "small.h5"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of captures that scripts/demo.sh makes."""
    folder = REPOSITORY / "datasets/smollm2"
    wanted = ("calibration.h5", "eval_austen.h5", "eval_jargon.h5")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"datasets/smollm2 lacks {', '.join(missing)}: scripts/demo.sh makes them")
    return folder
