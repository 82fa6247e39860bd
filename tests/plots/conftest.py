"""Fixtures of the tests of plots/: results files that the program wrote, and a browser where there is one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "plots"), str(REPOSITORY / "tests/program")]

import browser as chromium  # noqa: E402
from experiment_text import synthetic, write  # noqa: E402
from kvlab_program import Kvlab, program_path  # noqa: E402
from kvlab_results import Results, read  # noqa: E402


def pytest_sessionstart() -> None:
    """Without its packages all of this is skipped; ctest knows the code."""
    missing = [name for name in ("matplotlib", "plotly") if find_spec(name) is None]
    if missing:
        pytest.exit(f"all tests of plots/ skipped: there is no {' and no '.join(missing)}; bash scripts/setup.sh installs it", 77)


def _run(folder: Path, **changes: object) -> Results:
    if not program_path().is_file():
        pytest.exit("the program is not built: build it, or set KVLAB_PROGRAM to it", returncode=2)
    write(folder, **changes)
    Kvlab(folder).ok("run", "small.yaml")
    return read(folder / "small.h5")


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Errors, memory and arrays by token over groups and windows; two labels refuse a point."""
    return _run(tmp_path_factory.mktemp("swept"), methods=["bf16", "kivi", "int2_naive", "oscar_ots"],
                sweep={"grid": {"group": [32, 64], "window.recent": [0, 96]}}, seeds=[0, 1],
                measure=["error", "attention", "tni", "memory", "tokens"])


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Errors alone, without a sweep."""
    return _run(tmp_path_factory.mktemp("plain"), measure=["error"])


@pytest.fixture(scope="session")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Times by context and batch on the packed backend."""
    return _run(tmp_path_factory.mktemp("timed"), methods=["bf16", "kivi"], backend="cpu",
                dataset={key: value for key, value in synthetic().items() if key != "tokens"},
                sweep={"grid": {"tokens": [256, 512], "batch": [1, 2]}}, measure=["attention", "memory", "kernel_time"])


@pytest.fixture(scope="session")
def browser() -> Iterator[chromium.Browser]:
    path = chromium.program()
    if path is None:
        pytest.skip("there is no Chromium: bash scripts/setup.sh --dev installs one on Debian, KVLAB_CHROMIUM names another")
    made = chromium.Browser(path)
    yield made
    made.close()
