"""What a script's --out may replace: an HDF5 file of the schema that it writes, and nothing else."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
from kvlab_capture.atomic import require_output
from kvlab_capture.cli import UserError

SCHEMA = "kvlab.tokens/1"


def h5_file(path: Path, schema: str) -> Path:
    with h5py.File(path, "w") as file:
        file.attrs["schema"] = schema
    return path


def test_a_new_file_and_one_of_the_same_schema(tmp_path: Path) -> None:
    require_output(tmp_path / "new.h5", SCHEMA)
    require_output(h5_file(tmp_path / "old.h5", SCHEMA), SCHEMA)


def test_other_files_are_kept(tmp_path: Path) -> None:
    text = tmp_path / "novel.txt"
    text.write_text("dear to somebody")
    damaged = h5_file(tmp_path / "damaged.h5", SCHEMA)
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(UserError, match=r"novel.txt would be written over, and it is no kvlab.tokens/1 file"):
        require_output(text, SCHEMA)
    with pytest.raises(UserError, match=r"damaged.h5 would be written over"):
        require_output(damaged, SCHEMA)
    with pytest.raises(UserError, match="no kvlab.tokens/1 file but 'kvlab.capture/1'"):
        require_output(h5_file(tmp_path / "kv.h5", "kvlab.capture/1"), SCHEMA)
    with pytest.raises(UserError, match="is a folder"):
        require_output(tmp_path, SCHEMA)
    with pytest.raises(UserError, match="the output folder .*missing does not exist"):
        require_output(tmp_path / "missing/new.h5", SCHEMA)
