"""Storage types and files that are whole or absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from kvlab_capture import schema
from kvlab_capture.atomic import whole_file
from kvlab_capture.cli import UserError


def test_bfloat16_rounds_as_torch_does() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = np.arange(0, 2**16, dtype=np.uint32) << 16 | 0x8000
    x = np.concatenate([bits, ties]).view(np.float32)
    x = x[np.abs(x) < 3.3e38]  # finite, also after rounding; NaN compares false
    expected = torch.from_numpy(x).to(torch.bfloat16)
    stored = schema.encode(x, "bfloat16", "x")
    assert stored.dtype == np.uint16
    np.testing.assert_array_equal(schema.from_bfloat16(stored), expected.float().numpy())


def test_bfloat16_round_trip_is_exact_for_bfloat16_values(tmp_path: Path) -> None:
    k = torch.randn(2, 300, 8).to(torch.bfloat16).float().numpy()
    path = tmp_path / "c.h5"
    with schema.capture_file(path, np.zeros((1, 300)), np.arange(300), "bfloat16") as writer:
        writer.add_layer(3, {}, np.eye(4, dtype=np.float32))
        writer.add_passage(3, 0, {"k": k, "hidden_absmax": np.ones(300, np.float32)})
    with h5py.File(path) as file:
        stored = file["layer_003/k"]
        assert stored.dtype == np.uint16 and stored.attrs["dtype"] == "bfloat16"
        np.testing.assert_array_equal(schema.decode(stored)[0], k)
        assert file["layer_003/hidden_absmax"].dtype == np.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_value_beyond_the_type_is_refused(dtype: str) -> None:
    with pytest.raises(UserError, match=f"layer 2: k reaches 3.4e.38, which {dtype} cannot hold"):
        schema.encode(np.array([1.0, 3.4e38], np.float32), dtype, "layer 2: k")


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(UserError, match="v holds 2 values not finite"):
        schema.encode(np.array([1.0, np.nan, np.inf], np.float32), "float32", "v")


def test_chunks_stay_inside_a_head_and_are_bounded(tmp_path: Path) -> None:
    with schema.capture_file(tmp_path / "c.h5", np.zeros((1, 5000)), np.arange(2), "float32") as writer:
        writer.add_layer(0, {}, np.zeros((4, 256), np.float32))
        writer.add_passage(0, 0, {"k": np.zeros((2, 5000, 128), np.float32)})
    with h5py.File(tmp_path / "c.h5") as file:
        k = file["layer_000/k"]
        assert k.chunks == (1, 1, 1024, 128)
        assert k.shuffle and k.compression == "gzip"


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, UserError])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "out.h5"
    path.write_text("old")
    with pytest.raises(failure), whole_file(path) as temporary:
        temporary.write_text("half")
        raise failure
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory"), whole_file(tmp_path / "no" / "x"):
        pass


FULL_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
from kvlab_capture import cli, schema

def main():
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    noise = np.random.default_rng(0).standard_normal((2, 512, 64), np.float32)
    with schema.capture_file(Path(sys.argv[1]), np.zeros((1, 512)), np.arange(512), "float32") as writer:
        for layer in range(4):
            writer.add_layer(layer, {}, noise[0])
            writer.add_passage(layer, 0, {"k": noise, "v": noise})
    return 0

cli.run(main)
"""


def test_a_full_disk_is_one_sentence_and_no_crash(tmp_path: Path) -> None:
    """In a process of its own: HDF5 would crash at its end. A limit on file size stands in for the disk."""
    out = tmp_path / "kv.h5"
    command = [sys.executable, "-c", FULL_DISK, str(out)]
    done = subprocess.run(command, cwd=REPOSITORY / "datasets", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"-c: error: cannot write {out}: File too large\n"
    assert list(tmp_path.iterdir()) == []
