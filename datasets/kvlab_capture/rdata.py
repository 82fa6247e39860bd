"""Reads R's lazy-load data without R: character vectors by name.

A package's `Rdata.rdx` is a gzip stream of R's XDR serialization of list(variables = list(name = c(offset, length), ...),
references, compressed). `Rdata.rdb` holds at each offset a 4-byte big-endian size and a zlib stream of that many bytes,
again XDR. The format is described in "R Internals", section Serialization Formats; only what data of this kind uses is read.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from .cli import UserError

_NIL, _GLOBAL_ENV, _REFERENCE = 254, 253, 255
_SYMBOL, _PAIRLIST, _CHARS, _LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST = 1, 2, 9, 10, 13, 14, 16, 19
_HAS_ATTRIBUTES, _HAS_TAG = 1 << 9, 1 << 10
_LATIN1 = 1 << 2  # a level of CHARSXP, after the shift by 12


class MalformedRDataError(Exception):
    """The bytes are not the R serialization that this module reads."""


def read_lazy_load(stem: Path) -> dict[str, Any]:
    """All variables of `stem`.rdx and `stem`.rdb: vectors as lists, named lists as dicts."""
    try:
        index = deserialize(zlib.decompress(stem.with_suffix(".rdx").read_bytes(), wbits=zlib.MAX_WBITS | 32))
        data = stem.with_suffix(".rdb").read_bytes()
        return {name: deserialize(_record(data, *place)) for name, place in index["variables"].items()}
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error
    except (
        MalformedRDataError,
        zlib.error,
        struct.error,
        KeyError,
        TypeError,
        UnicodeDecodeError,
        IndexError,
    ) as error:
        raise UserError(f"{stem}.rdx and .rdb are not R lazy-load data as expected: {error}") from error


def _record(data: bytes, offset: int, length: int) -> bytes:
    (size,) = struct.unpack_from(">I", data, offset)
    record = zlib.decompress(data[offset + 4 : offset + length])
    if len(record) != size:
        raise MalformedRDataError(f"a record of {size} bytes has {len(record)}")
    return record


def deserialize(data: bytes) -> Any:
    """One object of R's binary XDR serialization, version 2 or 3."""
    reader = _Reader(data)
    if reader.take(2) != b"X\n":
        raise MalformedRDataError("no XDR header")
    version, _written_by, _readable_by = reader.integers(3)
    if version not in (2, 3):
        raise MalformedRDataError(f"serialization version {version}")
    if version == 3:
        reader.take(reader.integer())  # the native encoding's name; texts carry their own marks
    return reader.item()


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._references: list[Any] = []

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise MalformedRDataError("the data ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def integers(self, count: int) -> list[int]:
        return list(struct.unpack(f">{count}i", self.take(4 * count)))

    def integer(self) -> int:
        return self.integers(1)[0]

    def item(self) -> Any:
        flags = self.integer()
        kind = flags & 0xFF
        if kind in (_NIL, _GLOBAL_ENV):
            return None
        if kind == _REFERENCE:
            return self._references[(flags >> 8 or self.integer()) - 1]
        if kind == _SYMBOL:
            self._references.append(self.item())
            return self._references[-1]
        if kind == _CHARS:
            return self._chars(flags >> 12)
        if kind == _PAIRLIST:
            return self._pairlist(flags)
        value = self._vector(kind)
        attributes = self.item() if flags & _HAS_ATTRIBUTES else {}
        names = attributes.get("names")
        return value if names is None else dict(zip(names, value, strict=True))

    def _vector(self, kind: int) -> list[Any]:
        if kind not in (_LOGICAL, _INTEGER, _REAL, _STRINGS, _LIST):
            raise MalformedRDataError(f"an object of type {kind}")
        count = self.integer()
        if kind in (_LOGICAL, _INTEGER):
            return self.integers(count)
        if kind == _REAL:
            return list(struct.unpack(f">{count}d", self.take(8 * count)))
        return [self.item() for _ in range(count)]

    def _chars(self, levels: int) -> str | None:
        length = self.integer()
        if length == -1:
            return None  # NA
        return self.take(length).decode("latin-1" if levels & _LATIN1 else "utf-8")

    def _pairlist(self, flags: int) -> dict[str, Any]:
        """Tagged values; R's lists of attributes have this form."""
        pairs: dict[str, Any] = {}
        while flags & 0xFF == _PAIRLIST:
            if flags & _HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & _HAS_TAG else str(len(pairs))
            pairs[tag] = self.item()
            flags = self.integer()
        if flags & 0xFF != _NIL:
            raise MalformedRDataError("a pairlist that ends in no nil")
        return pairs
