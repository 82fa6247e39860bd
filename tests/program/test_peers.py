"""`peer_tests` on vectors that it never saw: other shapes and seeds, and files that are wrong."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kvlab_program import TRACES, program_path
from peer_vectors import Vector, all_vectors, kivi, write_vectors

PROGRAM = program_path().parent / "peer_tests"
pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="peer_tests is not built beside kvlab")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([PROGRAM, *arguments], env=os.environ | {"KVLAB_PEER_VECTORS": str(folder), "OMP_NUM_THREADS": "1"},
                          capture_output=True, text=True, timeout=300, check=False)
    for trace in TRACES:
        assert trace not in done.stdout + done.stderr, done.stdout + done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("seed", [11, 4242])
def test_new_vectors_of_every_method_agree(tmp_path: Path, seed: int) -> None:
    vectors = all_vectors(seed)
    for name, cases in vectors.items():
        write_vectors(tmp_path / f"{name}.h5", cases)
    code, out = run(tmp_path)
    assert code == 0, out
    counted = dict(re.findall(r"^(\S+)\s+(\d+) of +\d+ vectors agree$", out, re.MULTILINE))
    expected = {"kivi": 4, "quarot": 3, "oscar2": 2, "oscar_runtime": 2, "oscar_calib": 1, "optr": 1, "kitty": 1,
                "kvquant": 1, "turboquant": 2, "rotatekv": 2, "all": 19}
    assert {name: int(count) for name, count in counted.items()} == expected
    assert out.splitlines()[-1].startswith("all"), out


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    """Every dataset counts: a single changed number in any of them fails its vector."""
    for name, cases in all_vectors(5).items():
        attributes, data = cases[0]
        for dataset, array in data.items():
            if dataset in {"Q", "grad_weight", "calibration"} or not array.size or array.dtype == np.int32:
                continue
            wrong = array.copy()
            at = tuple(size // 2 for size in array.shape)
            wrong[at] = wrong[at] + (1 if np.issubdtype(array.dtype, np.integer) else 50)
            write_vectors(tmp_path / f"{name}.h5", [(attributes, data | {dataset: wrong})])
            code, out = run(tmp_path)
            assert code == 1 and f"{name}.h5/case_000: " in out, (name, dataset, out)
        (tmp_path / f"{name}.h5").unlink()


def lacks(attribute: str) -> Callable[[Vector], Vector]:
    return lambda vector: ({key: value for key, value in vector[0].items() if key != attribute}, vector[1])


def has(**attributes: object) -> Callable[[Vector], Vector]:
    return lambda vector: (vector[0] | attributes, vector[1])


def without(dataset: str) -> Callable[[Vector], Vector]:
    return lambda vector: (vector[0], {key: value for key, value in vector[1].items() if key != dataset})


def holds(dataset: str, array: np.ndarray) -> Callable[[Vector], Vector]:
    return lambda vector: (vector[0], vector[1] | {dataset: array})


MALFORMED: dict[str, tuple[Callable[[Vector], Vector], str]] = {
    "no bits": (lacks("bits"), "bits"),
    "no method": (lacks("method"), "method"),
    "another method": (has(method="KIVI-2"), "its method is 'KIVI-2', this file's are of KIVI"),
    "bits of a text": (has(bits="two"), "bits"),
    "no such grid": (has(grid="hexagonal"), "hexagonal"),
    "no such axis": (has(axis="head"), "axis 'head' is neither token nor channel"),
    "no such type": (has(dtype="fp12"), "fp12"),
    "group of none": (has(group=0), "group"),
    "group too large": (has(group=100), "tokens that are quantized"),
    "no codes": (without("codes"), "codes"),
    "no input": (without("input"), "input"),
    "codes too few": (holds("codes", np.zeros((1, 3, 96, 24), np.uint8)), "codes"),
    "scale of another shape": (holds("scale", np.ones((1, 3, 5, 7), np.float32)), "scale"),
    "no scale": (holds("scale", np.ones((1, 3, 0, 48), np.float32)), "scale"),
    "a flat input": (holds("input", np.ones(48, np.float32)), "input"),
    "an empty input": (holds("input", np.ones((1, 3, 0, 48), np.float32)), "."),
    "a dataset too many": (holds("surprise", np.ones(4, np.float32)), "surprise was not compared"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_vector_is_named(tmp_path: Path, name: str) -> None:
    change, says = MALFORMED[name]
    good = kivi(1, "K", 96, 48, 32, 0)
    write_vectors(tmp_path / "kivi.h5", [change(good), good])
    code, out = run(tmp_path)
    complaints = [line for line in out.splitlines() if line.startswith("kivi.h5/case_000: ")]
    assert code == 1 and complaints and any(re.search(says, line) for line in complaints), out
    assert re.search(r"^kivi +1 of +2 vectors agree$", out, re.MULTILINE), out  # the other one was compared


def test_a_file_that_nothing_checks_or_reads_is_named(tmp_path: Path) -> None:
    write_vectors(tmp_path / "novel.h5", [kivi(1, "K", 96, 48, 32, 0)])
    (tmp_path / "quarot.h5").write_text("no HDF5")
    write_vectors(tmp_path / "kivi.h5", [kivi(1, "K", 96, 48, 32, 0)])
    write_vectors(tmp_path / "kitty.h5", [])
    code, out = run(tmp_path)
    assert code == 1
    assert "novel.h5/case_000: nothing here checks files of this name" in out
    assert re.search(r"^quarot.h5: .*quarot.h5", out, re.MULTILINE), out
    assert "kitty.h5: holds no case" in out
    assert re.search(r"^kivi +1 of +1 vectors agree$", out, re.MULTILINE), out


def test_without_vectors_the_test_is_skipped_with_a_count(tmp_path: Path) -> None:
    code, out = run(tmp_path / "nowhere")
    assert code == 4 and re.search(r"all \d+ published vectors skipped", out)
