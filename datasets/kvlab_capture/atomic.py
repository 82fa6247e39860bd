"""An output file is whole or absent: written under another name in the same folder, then put in place in one step."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from .cli import UserError


def require_output(path: Path, schema: str) -> None:
    """Refuses early what would be found out after an hour of computing, or lose somebody's file.

    The folder of `path` must be there, and what `path` replaces must be an HDF5 file of the same schema.
    """
    if not path.parent.is_dir():
        raise UserError(f"the output folder {path.parent} does not exist")
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file")
    if not path.exists():
        return
    try:
        with h5py.File(path) as file:
            found = file.attrs.get("schema")
    except OSError as error:  # anything else, or an HDF5 file that is damaged: both may be dear to somebody
        raise UserError(f"{path} would be written over, and it is no {schema} file: choose another name") from error
    if found != schema:
        raise UserError(f"{path} would be written over, and it is no {schema} file but {found!r}: choose another name")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields the path to write to. On success it replaces `path`, on any failure (Ctrl-C too) it is removed."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
