"""Writes `kvlab.capture/1` (contract section 6): root attributes, /tokens, /positions and one group a layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .atomic import whole_file
from .cli import UserError, counted
from .full_disk import RememberingFile

SCHEMA = "kvlab.capture/1"
DTYPES = ("float32", "float16", "bfloat16")

_GZIP_LEVEL = 2  # higher levels cost several times the time for about 1% of the size
_CHUNK_BYTES = 512 * 1024  # half of HDF5's default chunk cache, so that a reader of slices decompresses a chunk once


def group_name(layer: int) -> str:
    return f"layer_{layer:03d}"


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 -> the upper 16 bits as uint16, rounded to nearest, ties to even. Finite input."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """uint16 -> float32, exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def encode(x: np.ndarray, dtype: str, what: str) -> np.ndarray:
    """float32 array -> as stored. Refuses what `dtype` cannot hold: a reader would refuse the file."""
    if not np.isfinite(x).all():
        wrong = np.count_nonzero(~np.isfinite(x))
        raise UserError(f"{what} holds {counted(wrong, 'value')} not finite")
    if dtype == "float32":
        return x
    largest = np.abs(x).max(initial=0.0)
    with np.errstate(over="ignore"):
        stored = to_bfloat16(x) if dtype == "bfloat16" else x.astype(np.float16)
    if not np.isfinite(from_bfloat16(stored) if dtype == "bfloat16" else stored).all():
        raise UserError(f"{what} reaches {largest:.3g}, which {dtype} cannot hold: use --dtype float32")
    return stored


def decode(dataset: h5py.Dataset) -> np.ndarray:
    """A dataset of a capture as float32."""
    stored = dataset[...]
    return from_bfloat16(stored) if dataset.attrs.get("dtype") == "bfloat16" else stored.astype(np.float32)


class CaptureWriter:
    """A capture file being written. `tokens` int32 [B, T], `positions` int32 [P]."""

    def __init__(
        self, file: h5py.File, disk: RememberingFile, tokens: np.ndarray, positions: np.ndarray, dtype: str
    ) -> None:
        self._file, self._disk, self._dtype, self._passages = file, disk, dtype, tokens.shape[0]
        file.attrs["schema"] = SCHEMA
        file.create_dataset("tokens", data=tokens.astype(np.int32))
        file.create_dataset("positions", data=positions.astype(np.int32))

    def set_attributes(self, attributes: dict[str, Any]) -> None:
        self._file.attrs.update(attributes)

    def add_layer(self, layer: int, attributes: dict[str, Any], w_o: np.ndarray) -> None:
        """`w_o` [D, Hq*d]. Passages follow."""
        group = self._file.create_group(group_name(layer))
        group.attrs.update({"layer": layer, **attributes})
        self._create(group, "w_o", w_o.shape, self._dtype)[...] = encode(w_o, self._dtype, f"layer {layer}: w_o")

    def add_passage(self, layer: int, passage: int, tensors: dict[str, np.ndarray]) -> None:
        """Tensors of one passage: [H, T or P, d] in the file's type, [T] always float32; each gains B in front.

        Gradients are too small for float16, where they are float32.
        """
        group = self._file[group_name(layer)]
        for name, x in tensors.items():
            too_small = name.startswith("grad_") and self._dtype == "float16"
            dtype = self._dtype if x.ndim > 1 and not too_small else "float32"
            if name not in group:
                self._create(group, name, (self._passages, *x.shape), dtype)
            group[name][passage] = encode(x, dtype, f"layer {layer}: {name}")
        self._file.flush()
        self._disk.check()

    def _create(self, group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str) -> h5py.Dataset:
        """Chunks lie inside one head: [1, 1, rows, d]."""
        stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        rows = min(shape[-2], max(1, _CHUNK_BYTES // (shape[-1] * stored.itemsize)))
        chunks = (*(1,) * (len(shape) - 2), rows, shape[-1])
        dataset = group.create_dataset(
            name, shape, stored, chunks=chunks, compression="gzip", compression_opts=_GZIP_LEVEL, shuffle=True
        )
        if dtype == "bfloat16":
            dataset.attrs["dtype"] = "bfloat16"
        return dataset


@contextmanager
def capture_file(path: Path, tokens: np.ndarray, positions: np.ndarray, dtype: str) -> Iterator[CaptureWriter]:
    """Opens a capture for writing; `path` appears only when all of it is there."""
    with whole_file(path) as temporary, RememberingFile(str(temporary)) as disk:
        with h5py.File(disk, "w") as file:
            yield CaptureWriter(file, disk, tokens, positions, dtype)
        disk.check()
