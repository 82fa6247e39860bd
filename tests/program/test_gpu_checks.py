"""kvlab_gpu_check without a GPU: what it skips, it counts."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from kvlab_program import program_path


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = program_path().with_name("kvlab_gpu_check")
    if not program.with_name("kernel_tests").is_file():
        pytest.skip("the programs of tests are not built")
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, timeout=120, check=False,
                          env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})


def test_cases_are_skipped_with_their_count_whatever_was_built() -> None:
    """Exit 4 is what ctest calls skipped, here as where nvcc is and no GPU."""
    everything = check("--list").stdout.splitlines()
    assert len(everything) > 100 and len(set(everything)) == len(everything)
    for few in ([], ["--filter", everything[0]]):
        names = check("--list", *few).stdout.splitlines()
        skipped = check(*few)
        assert skipped.returncode == 4
        assert re.fullmatch(rf"{len(names)} cases skipped: .{{10,}}\n", skipped.stdout), skipped.stdout
