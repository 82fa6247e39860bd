"""Files that are made to break `kvlab convert`: each is refused in a sentence, with exit 2, in little time and memory."""

from __future__ import annotations

import io
import json
import re
import resource
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from kvlab_program import Kvlab, program_path

DIM = 8
EYE = np.eye(DIM, dtype=np.float32).tobytes()


def saved() -> bytes:
    """What torch.save writes of a rotation."""
    buffer = io.BytesIO()
    torch.save({"format_version": 1, "objective": "qqt", "layers": {0: {"rotation": torch.eye(DIM)}}}, buffer)
    return buffer.getvalue()


def archive(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def packed_anew() -> bytes:
    """The same by another writer, without ZIP64's directory."""
    with zipfile.ZipFile(io.BytesIO(saved())) as file:
        return archive({name: file.read(name) for name in file.namelist()})


def changed(data: bytes, find: bytes, offset: int, replacement: bytes) -> bytes:
    """`replacement` in place of the bytes that stand `offset` behind the last `find`."""
    at = data.rindex(find) + offset
    return data[:at] + replacement + data[at + len(replacement):]


CENTRAL = b"PK\x01\x02"
END = b"PK\x05\x06"
END64 = b"PK\x06\x06"
MARK = b"\x80\x02"
TENSOR = (b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
          b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ")


def pickled(code: bytes) -> bytes:
    return archive({"r/data.pkl": MARK + code, "r/data/0": bytes(256)})


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def tensor(offset: int, sizes: list[int], strides: list[int]) -> bytes:
    shape, steps = (b"(" + b"".join(map(number, numbers)) + b"t" for numbers in (sizes, strides))
    return pickled(TENSOR + number(offset) + shape + steps + b"\x89NtR.")


def wrong_byte() -> bytes:
    data = saved()
    at = data.index(np.float32(1).tobytes() + bytes(4 * DIM))
    return data[:at] + b"\x01" + data[at + 1:]


ARCHIVES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "no ZIP archive"),
    "cut in the tensor": (lambda: saved()[:700], "no ZIP archive"),
    "cut in the directory": (lambda: saved()[:-80], "no ZIP archive"),
    "one wrong byte": (wrong_byte, "its checksum is not the one stored"),
    "wrong checksum": (lambda: changed(saved(), CENTRAL, 16, b"\x00\x01\x02\x03"), "its checksum is not the one stored"),
    "huge size": (lambda: changed(saved(), CENTRAL, 20, b"\xf0\xff\xff\x7f" * 2), "more were expected from byte"),
    "two sizes": (lambda: changed(saved(), CENTRAL, 20, b"\x08\x00\x00\x00"), "has two sizes"),
    "no ZIP64 field": (lambda: changed(saved(), CENTRAL, 20, b"\xff" * 8), "without its ZIP64 sizes"),
    "many entries": (lambda: changed(packed_anew(), END, 10, b"\xff\xff"), "damaged ZIP directory|were expected from byte"),
    "far directory": (lambda: changed(packed_anew(), END, 16, b"\xf0\xff\xff\xff"), "were expected from byte|damaged"),
    "many ZIP64 entries": (lambda: changed(saved(), END64, 32, b"\xff" * 8), "damaged ZIP directory|expected from byte"),
    "far ZIP64 directory": (lambda: changed(saved(), END64, 48, b"\xf0" + b"\xff" * 7), "expected from byte|damaged"),
    "far entry": (lambda: changed(saved(), CENTRAL, 42, b"\xf0\xff\xff\x7f"), "were expected from byte|damaged"),
    "above the folder": (lambda: archive({"../../r/data.pkl": MARK + b"}."}), r"'../../r/data.pkl' has a name that leads out"),
    "absolute": (lambda: archive({"r/data.pkl": MARK + b"}.", "/etc/passwd": b"x"}), "'/etc/passwd' has a name that leads out"),
    "backslash": (lambda: archive({"r\\data.pkl": MARK + b"}."}), "leads out of the archive|holds no data.pkl"),
    "control characters": (lambda: archive({"r/\x1b[2J/../data.pkl": MARK + b"}."}), r"'r/\?\[2J/../data.pkl'"),
    "no pickle": (lambda: archive({"r/other": b"x"}), "holds no data.pkl"),
    "big endian": (lambda: archive({"r/data.pkl": MARK + b"}.", "r/byteorder": b"big"}), "byte order 'big'"),
    "deep lists": (lambda: pickled(b"]" * 5000 + b"a" * 4999 + b"."), "nested deeper"),
    "deep tuples": (lambda: pickled(b"K\x01" + b"\x85" * 5000 + b"."), "nested deeper"),
    "many values": (lambda: pickled(b"N" * 500000 + b"."), "more values than"),
    "wide copies": (lambda: pickled(b"](" + b"K\x01" * 1000 + b"eq\x00" + b"](h\x00h\x00h\x00h\x00e" * 1000 + b"."),
                    "more values than"),
    "repeated element": (lambda: tensor(0, [64, 64, 64], [0, 0, 0]), "larger than its storage"),
    "huge repeated element": (lambda: tensor(0, [60] * 8, [0] * 8), "larger than its storage"),
    "negative offset": (lambda: tensor(-4, [2, 2], [2, 1]), "wrong shape"),
    "far offset": (lambda: tensor(1 << 62, [], []), "larger than its storage"),
    "negative size": (lambda: tensor(0, [-1, 2], [2, 1]), "wrong shape"),
    "sizes that overflow": (lambda: tensor(0, [1 << 40, 1 << 40], [1 << 40, 1]), "larger than its storage"),
    "many dimensions": (lambda: tensor(0, [1] * 70, [1] * 70), "wrong shape"),
    "empty and huge": (lambda: tensor(0, [0, 1 << 62, 1 << 62], [1, 1, 1]), "expected a dict"),
    "no text": (lambda: pickled(b"}X\x02\x00\x00\x00\xff\xfeK\x01s."), "no UTF-8"),
    "storage above": (lambda: pickled(TENSOR.replace(b"X\x01\x00\x00\x000", b"X\x05\x00\x00\x00../.."))
                      , "has no entry data/../.., which its pickle names"),
    "protocol": (lambda: archive({"r/data.pkl": b"\x80\x09}."}), "protocol 9"),
}


def limited() -> None:
    """Two gigabytes of memory: what a small file asks for beyond that is the file's doing."""
    resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))


def refused(kvlab: Kvlab, name: str, says: str) -> None:
    done = subprocess.run([program_path(), "convert", name, "out.h5"], cwd=kvlab.folder, capture_output=True, text=True,
                          timeout=60, check=False, preexec_fn=limited)
    assert done.returncode == 2 and done.stdout == "", (done.returncode, done.stderr)
    assert done.stderr.startswith("kvlab: ") and re.search(says, done.stderr), done.stderr
    assert done.stderr.count("\n") == 1 and "c10::" not in done.stderr and len(done.stderr) < 600, done.stderr
    assert sorted(path.name for path in kvlab.folder.iterdir()) == [name]


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_hostile_archive_is_refused(kvlab: Kvlab, name: str) -> None:
    make, says = ARCHIVES[name]
    (kvlab.folder / "k_bad.pt").write_bytes(make())
    refused(kvlab, "k_bad.pt", says)


def test_entries_over_each_other_are_refused(kvlab: Kvlab) -> None:
    """Many names for the same bytes: together they are larger than any memory."""
    whole = archive({"r/big": bytes(1 << 20), **{f"r/{i:04d}": b"" for i in range(3000)}})
    directory = whole.index(CENTRAL)
    first = whole[directory + 16:directory + 28]  # checksum and sizes
    data = bytearray(whole)
    at = directory
    while data[at:at + 4] == CENTRAL:
        data[at + 16:at + 28] = first
        data[at + 42:at + 46] = bytes(4)
        at += 46 + sum(struct.unpack("<HHH", data[at + 28:at + 34]))
    (kvlab.folder / "k_bad.pt").write_bytes(data)
    refused(kvlab, "k_bad.pt", "lie over each other")


def tensors(header: Any, data: bytes = EYE * 2, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(begin: int, end: int, dtype: str = "F32", shape: Any = (DIM, DIM)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


KEY = "layers.0.key.rotation"
SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cannot be read"),
    "short": (b"\x01\x02", "no safetensors file, or cut short"),
    "header longer than the file": (tensors({}, size=1 << 20), "cut short"),
    "header longer than any file": (tensors({}, size=(1 << 64) - 1), "cut short"),
    "no JSON": (tensors(b"{]"), "no JSON object"),
    "deep JSON": (tensors(b"[" * 200000), "no JSON object"),
    "no UTF-8": (tensors(b'{"\xff": 1}'), "no JSON object"),
    "overlap": (tensors({KEY: entry(0, 256), "layers.0.value.rotation": entry(128, 384)}), "lie over each other"),
    "the same twice": (tensors({KEY: entry(0, 256), "layers.1.key.rotation": entry(0, 256)}), "lie over each other"),
    "beyond the file": (tensors({KEY: entry(256, 1024)}), "does not lie within the file"),
    "backwards": (tensors({KEY: entry(256, 0)}), "does not lie within the file"),
    "negative": (tensors({KEY: entry(-256, 0)}), "does not lie within the file"),
    "half a byte": (tensors({KEY: entry(0, 256) | {"data_offsets": [0, 255.5]}}), "does not lie within the file"),
    "huge shape": (tensors({KEY: entry(0, 256, shape=[1 << 40, 1 << 40])}), "needs more than any file has"),
    "wrapping shape": (tensors({KEY: entry(0, 256, shape=[1 << 32, 1 << 32, 64])}), "needs"),
    "many dimensions": (tensors({KEY: entry(0, 4, shape=[1] * 100)}), "does not lie within the file"),
    "wrong type": (tensors({KEY: entry(0, 64, "I8")}), "has type I8, expected F64"),
    "whole numbers": (tensors({KEY: entry(0, 512, "I64")}), "holds Long, expected float64"),
    "unknown type": (tensors({KEY: entry(0, 256, "\x1b[31m")}), r"has type \?\[31m"),
    "no rotation": (tensors({KEY: entry(0, 256, shape=[4, 16])}), r"has shape .4, 16."),
    "no heads": (tensors({KEY: entry(0, 0, shape=[0, DIM, DIM])}), r"has shape .0, 8, 8."),
    "not a number": (tensors({KEY: entry(0, 256)}, np.full(DIM * DIM, np.nan, np.float32).tobytes()), "not orthogonal"),
    "infinite centre": (tensors({"layers.0.key.center": entry(0, 32, shape=[1, DIM])},
                                np.full(DIM, np.inf, np.float32).tobytes()), "holds NaN or infinite values"),
    "path in a name": (tensors({KEY: entry(0, 256), "layers.0.key.../../x": entry(256, 512)}), "letters, digits and _"),
    "no name": (tensors({KEY: entry(0, 256), "layers.0.key.": entry(256, 512)}), "letters, digits and _"),
    "another name": (tensors({"model.weight": entry(0, 256)}), "is not named layers.N.key"),
    "negative layer": (tensors({"layers.-1.key.rotation": entry(0, 256)}), "is not named layers.N.key"),
    "metadata": (tensors({"__metadata__": {"format": 3}, KEY: entry(0, 256)}), "no object of texts"),
    "nothing": (tensors({}), "holds no tensor"),
    "centre of other channels": (tensors({KEY: entry(0, 256), "layers.0.key.center": entry(256, 288, shape=[1, 8]) |
                                          {"shape": [2, 4]}}), r"layers.0.key.center has shape .2, 4., expected .H, d."),
    "eigenvalues of other channels": (tensors({KEY: entry(0, 256), "layers.0.key.eigenvalues": entry(256, 268, shape=[3])}),
                                      r"layers.0.key.eigenvalues has shape .3."),
    "basis without an inverse": (tensors({"layers.0.key.basis": entry(0, 256, shape=[1, DIM, DIM])}, bytes(256)),
                                 "layers.0.key.basis has no inverse"),
    "basis and rotation": (tensors({KEY: entry(0, 256), "layers.0.key.basis": entry(256, 512, shape=[1, DIM, DIM])}),
                           "layers.0.key.basis stands beside a rotation"),
    "order": (tensors({"layers.0.key.order": entry(0, 32, shape=[8])}, np.array([0, 1, 2, 3, 4, 5, 6, 6], "f4").tobytes()),
              "layers.0.key.order is no order of channels"),
    "one layer by two names": (tensors({KEY: entry(0, 256), "layers.00.key.rotation": entry(256, 512)}),
                               "'layers.00.key.rotation' is not named layers.N.key"),
    "a name twice": (tensors(json.dumps({KEY: entry(0, 256)})[:-1].encode() + b", " +
                             json.dumps({KEY: entry(256, 512)})[1:].encode()), f"has the name '{KEY}' twice"),
}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_hostile_safetensors_are_refused(kvlab: Kvlab, name: str) -> None:
    data, says = SAFETENSORS[name]
    (kvlab.folder / "bad.safetensors").write_bytes(data)
    refused(kvlab, "bad.safetensors", says)


def test_an_empty_rotation_is_named_by_its_shape(kvlab: Kvlab) -> None:
    torch.save({"layers": {0: {"rotation": torch.empty(0, 0)}}}, kvlab.folder / "k_bad.pt")
    refused(kvlab, "k_bad.pt", r"layer 0's rotation has shape .0, 0., expected")


PARTS: dict[str, tuple[dict[str, Any], str]] = {
    "centre of other channels": ({"center": torch.zeros(2, DIM + 1)}, r"layer 0's center has shape .2, 9."),
    "eigenvalues of other channels": ({"eigenvalues": torch.zeros(3)}, r"layer 0's eigenvalues has shape .3."),
    "a text for a centre": ({"center": "x"}, "layer 0's center is the text 'x', expected a tensor"),
    "an infinite centre": ({"center": torch.full((2, DIM), torch.inf)}, "layer 0's center holds NaN or infinite values"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_go_with_the_rotation_are_refused(kvlab: Kvlab, name: str) -> None:
    more, says = PARTS[name]
    torch.save({"layers": {0: {"rotation": torch.eye(DIM)} | more}}, kvlab.folder / "k_bad.pt")
    refused(kvlab, "k_bad.pt", says)


def write_h5(path: Path, **tensors: np.ndarray) -> None:
    """A rotation file of another program: without a checksum."""
    with h5py.File(path, "w") as file:
        file.attrs["schema"] = "kvlab.rotation/1"
        for name, values in tensors.items():
            file[f"layer_000/key/{name}"] = values


H5: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "no heads": ({"rotation": np.zeros((0, DIM, DIM))}, r"/layer_000/key/rotation: .*\[0, 8, 8\]|expected a rotation"),
    "centre": ({"rotation": np.eye(DIM)[None], "center": np.zeros((2, DIM + 1))}, r"center has shape \[2, 9\]"),
    "eigenvalues": ({"rotation": np.eye(DIM)[None], "eigenvalues": np.zeros(3)}, r"eigenvalues has shape \[3\]"),
    "basis": ({"basis": np.zeros((1, DIM, DIM))}, "the basis has no inverse"),
    "both": ({"rotation": np.eye(DIM)[None], "basis": np.eye(DIM)[None]}, "the basis stands beside a rotation"),
    "order": ({"order": np.zeros(DIM)}, "the order is no order of channels"),
}


@pytest.mark.parametrize("name", H5)
def test_hdf5_rotations_are_checked_by_convert_and_inspect(kvlab: Kvlab, name: str) -> None:
    parts, says = H5[name]
    write_h5(kvlab.folder / "bad.h5", **parts)
    message = kvlab.refused("convert", "bad.h5", "out.safetensors").err
    assert re.search(says, message) and "at::" not in message, message
    outcome = kvlab("inspect", "bad.h5", "--verify")
    assert outcome.code == 1 and re.search(says, outcome.out), outcome.out


def test_every_cut_of_a_file_is_refused_or_read(kvlab: Kvlab) -> None:
    """Random damage: a sentence or a rotation, never an end by a signal."""
    random = np.random.default_rng(5)
    good = {"k_r.pt": saved(), "r.safetensors": tensors({KEY: entry(0, 256)}, EYE)}
    for name, data in good.items():
        for round_ in range(25):
            damaged = bytearray(data)
            if round_ % 3 == 0:
                damaged = damaged[:int(random.integers(len(damaged)))]
            else:
                for at in random.integers(len(damaged), size=3):
                    damaged[at] = int(random.integers(256))
            (kvlab.folder / name).write_bytes(damaged)
            outcome = kvlab("convert", name, "out.h5", timeout=60)
            assert outcome.code in (0, 2), (name, round_, outcome.code, outcome.err)
            assert "c10::" not in outcome.err and outcome.err.count("\n") <= 2, outcome.err
            (kvlab.folder / "out.h5").unlink(missing_ok=True)
