"""Opening results files in the scripts beside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import h5py


def refuse(sentence: str) -> NoReturn:
    """Ends the script with one line and exit status 2."""
    print(f"{Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    sys.exit(2)


def open_results(path: str) -> h5py.File:
    """The file, if it holds what kvlab run stores."""
    if not Path(path).exists():
        refuse(f"there is no file {path}")
    try:
        file = h5py.File(path)
    except OSError as error:
        refuse(f"{path} cannot be read: {error}")
    if "summary" not in file and "cells" not in file:
        refuse(f"{path} holds no results of kvlab run")
    return file
