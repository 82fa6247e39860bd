"""`kvlab convert`: rotations between kvlab.rotation/1, torch.save's .pt and .safetensors (contract section 2).

The .pt files are made by torch.save in OSCAR's RotationZoo form and read back by torch.load; the malicious ones are made
by hand, and must be refused by name without being run.
"""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from capture_writer import random_layer, write_capture
from kvlab_program import Kvlab

DIM = 16


def rotation(seed: int, heads: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (DIM, DIM) if heads is None else (heads, DIM, DIM)
    return torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))[0]


def zoo(seeds: dict[int, int], objective: str = "qqt_r_h_pbr", dtype: torch.dtype = torch.float32,
        **changes: Any) -> dict[str, Any]:
    """OSCAR's form: one side, a layer id to its matrix and eigenvalues."""
    layers = {layer: {"layer_id": layer, "rotation": rotation(seed).to(dtype), "eigenvalues": torch.arange(DIM) / 2}
              for layer, seed in seeds.items()}
    return {"format_version": 1, "objective": objective, "source_grouping": "layer", "layers": layers} | changes


def refuses(kvlab: Kvlab, *arguments: object, says: str) -> None:
    """Exit 2, no file left behind, and this in the message."""
    message = kvlab.refused(*arguments).err
    assert re.search(says, message), message


def held(path: Path, name: str) -> np.ndarray:
    with h5py.File(path) as file:
        return file[name][()]


def test_both_sides_of_a_released_rotation_become_one_file_and_come_back(kvlab: Kvlab) -> None:
    folder = kvlab.folder
    torch.save(zoo({0: 1, 7: 2}), folder / "k_rotation_qqt_r_h_pbr.pt")
    torch.save(zoo({0: 3, 7: 4}, "sst_r_h_pbr"), folder / "v_rotation_sst_r_h_pbr.pt")
    kvlab.ok("convert", "k_rotation_qqt_r_h_pbr.pt", "v_rotation_sst_r_h_pbr.pt", "r.h5")
    with h5py.File(folder / "r.h5") as file:
        assert file.attrs["schema"] == "kvlab.rotation/1" and file.attrs["method"] == "qqt_r_h_pbr"
        assert sorted(file) == ["layer_000", "layer_007"]
    for seed, name in ((1, "layer_000/key"), (2, "layer_007/key"), (3, "layer_000/value"), (4, "layer_007/value")):
        np.testing.assert_array_equal(held(folder / "r.h5", f"{name}/rotation")[0], rotation(seed).float().numpy())

    kvlab.ok("convert", "r.h5", "r.safetensors", "--dtype", "fp64")
    kvlab.ok("convert", "r.safetensors", "back.h5")
    for name in ("layer_007/value/rotation", "layer_000/key/rotation", "layer_000/key/eigenvalues"):
        np.testing.assert_array_equal(held(folder / "back.h5", name), held(folder / "r.h5", name))

    kvlab.ok("convert", "back.h5", "again.pt", "--side", "value")
    again = torch.load(folder / "again.pt", weights_only=True)
    assert again["format_version"] == 1 and again["source_grouping"] == "layer" and list(again["layers"]) == [0, 7]
    assert again["layers"][7]["layer_id"] == 7 and again["layers"][7]["rotation"].dtype == torch.float32
    torch.testing.assert_close(again["layers"][7]["rotation"], rotation(4).float(), rtol=0, atol=0)
    torch.testing.assert_close(again["layers"][0]["eigenvalues"], torch.arange(DIM) / 2, rtol=0, atol=0)


def test_safetensors_are_what_others_read(kvlab: Kvlab) -> None:
    """8 bytes of size, JSON, tensors: read here by hand."""
    torch.save(zoo({3: 5}), kvlab.folder / "k_r.pt")
    kvlab.ok("convert", "k_r.pt", "r.safetensors", "--dtype", "fp16")
    data = (kvlab.folder / "r.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    assert size % 8 == 0 and header["__metadata__"]["format"] == "kvlab.rotation/1"
    entry = header["layers.3.key.rotation"]
    assert entry["dtype"] == "F16" and entry["shape"] == [1, DIM, DIM]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    np.testing.assert_array_equal(np.frombuffer(data[begin:end], np.float16).reshape(DIM, DIM),
                                  rotation(5).half().numpy())


def test_layers_are_mapped_and_the_model_is_checked(kvlab: Kvlab) -> None:
    torch.save(zoo({4: 1, 5: 2}), kvlab.folder / "k_r.pt")
    kvlab.ok("convert", "k_r.pt", "r.h5", "--layer", "5=0")
    with h5py.File(kvlab.folder / "r.h5") as file:
        assert [name for name in file if name.startswith("layer")] == ["layer_000"]
    np.testing.assert_array_equal(held(kvlab.folder / "r.h5", "layer_000/key/rotation")[0], rotation(2).float().numpy())
    write_capture(kvlab.folder / "fits.h5", {0: random_layer(0, 32, head_dim=DIM)})
    write_capture(kvlab.folder / "other.h5", {0: random_layer(0, 32, head_dim=2 * DIM)})
    kvlab.ok("convert", "r.h5", "r.safetensors", "--data", "fits.h5")
    refuses(kvlab, "convert", "r.h5", "no.safetensors", "--data", "other.h5",
            says="the rotation is .1, 16, 16., the model has 2 KV heads of 32")
    refuses(kvlab, "convert", "k_r.pt", "no.safetensors", "--data", "fits.h5",
            says="layer 4 is not one of the model's: 0")
    refuses(kvlab, "convert", "k_r.pt", "no.h5", "--layer", "9", says="has no layer 9, it has 4, 5")
    assert not (kvlab.folder / "no.safetensors").exists() and not (kvlab.folder / "no.h5").exists()


def test_a_converted_rotation_is_what_a_method_uses(kvlab: Kvlab) -> None:
    """Per head and transposed in memory, in bfloat16: strides and types are read right."""
    layers = {0: {"layer_id": 0, "rotation": rotation(9, heads=2).transpose(1, 2).bfloat16()}}
    torch.save({"format_version": 1, "layers": layers}, kvlab.folder / "r.pt")
    refuses(kvlab, "convert", "r.pt", "r.h5", says="says whether it rotates keys or values: add --side")
    said = kvlab.ok("convert", "r.pt", "r.h5", "--side", "key")
    assert "pulled to the nearest orthogonal matrix" in said.err
    found = held(kvlab.folder / "r.h5", "layer_000/key/rotation")
    np.testing.assert_allclose(found, rotation(9, heads=2).transpose(1, 2).numpy(), atol=4e-3)
    np.testing.assert_allclose(found @ found.transpose(0, 2, 1), np.eye(DIM)[None].repeat(2, 0), atol=1e-9)


def test_a_pt_of_ours_says_which_side_it_holds(kvlab: Kvlab) -> None:
    """Written under any name it comes back without a hint, with what it was made from."""
    torch.save(zoo({0: 1}), kvlab.folder / "k_r.pt")
    torch.save(zoo({0: 2}, "sst"), kvlab.folder / "v_r.pt")
    kvlab.ok("convert", "k_r.pt", "v_r.pt", "r.h5")
    with h5py.File(kvlab.folder / "r.h5", "r+") as file:
        del file.attrs["sha256"]
        file.attrs["method"] = "oscar_cov"
        file.attrs["calibration"] = "abc"
    for side in ("key", "value"):
        kvlab.ok("convert", "r.h5", f"{side}.pt", "--side", side)
        assert kvlab.ok("convert", f"{side}.pt", f"{side}.h5").err == ""
        with h5py.File(kvlab.folder / f"{side}.h5") as file:
            assert list(file["layer_000"]) == [side] and file.attrs["calibration"] == "abc"


def test_signs_that_contradict_each_other_are_told(kvlab: Kvlab) -> None:
    torch.save(zoo({0: 1}, "sst_r_h_pbr"), kvlab.folder / "k_r.pt")
    said = kvlab.ok("convert", "k_r.pt", "r.h5").err
    assert "taken for keys, as its name says; its objective 'sst_r_h_pbr' says values" in said
    said = kvlab.ok("convert", "k_r.pt", "v.h5", "--side", "value").err
    assert "taken for values, as --side says; its name says keys" in said


class Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("open('ran', 'w').close()",)


def archive(path: Path, code: bytes, **entries: bytes) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("r/data.pkl", code)
        for name, data in entries.items():
            file.writestr(f"r/{name.replace('_', '/')}", data)


STORAGE = b"X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n((" + STORAGE
WRONG = {
    "code": (pickle.dumps({"layers": Attack()}, 2), "__builtin__.exec|builtins.exec"),
    "system": (b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00ls\x85R.", "'posix.system', which is refused"),
    "object": (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "operation 0x81, which is refused"),
    "build": (b"\x80\x02}}b.", "operation 0x62, which is refused"),
    "global as value": (b"\x80\x02}X\x01\x00\x00\x00actorch\nFloatStorage\ns.", "'torch.FloatStorage' as a value"),
    "beyond storage": (b"\x80\x02" + TENSOR + b"K\x00K\x03K\x03\x86K\x03K\x01\x86\x89NtR.", "larger than its storage"),
    "far beyond": (b"\x80\x02" + TENSOR + b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fK\x01\x85K\x01\x85\x89NtR.",
                   "larger than its storage"),
    "cut off": (b"\x80\x02}X\xff\x00\x00\x00a", "ends too early"),
    "no storage": (b"\x80\x02" + TENSOR.replace(b"0X\x03", b"7X\x03") + b"K\x00K\x02\x85K\x01\x85\x89NtR.",
                   "no entry data/7"),
    "doubling": (b"\x80\x02](K\x01e" + b"q\x00](h\x00h\x00e" * 40 + b".", "more values than"),
    "a list": (b"\x80\x02].", "expected a dict with 'layers'"),
    "stack": (b"\x80\x02t.", "pickle is damaged"),
}


@pytest.mark.parametrize("name", WRONG)
def test_no_code_in_a_pickle_is_run(kvlab: Kvlab, name: str) -> None:
    code, says = WRONG[name]
    archive(kvlab.folder / "k_bad.pt", code, data_0=bytes(16))
    refuses(kvlab, "convert", "k_bad.pt", "out.h5", says=says)
    assert not (kvlab.folder / "ran").exists() and not (kvlab.folder / "out.h5").exists()


def test_what_is_no_rotation_is_refused(kvlab: Kvlab) -> None:
    folder = kvlab.folder

    def refused(content: Any, says: str) -> None:
        torch.save(content, folder / "k_r.pt")
        refuses(kvlab, "convert", "k_r.pt", "out.h5", says=says)
        assert not (folder / "out.h5").exists()

    skewed = zoo({0: 1})
    skewed["layers"][0]["rotation"][0, 0] += 0.1
    refused(skewed, "layer 0's rotation is not orthogonal: RᵀR is off by 0.")
    renamed = zoo({0: 1})
    renamed["layers"][0]["layer_id"] = 3
    refused(renamed, "layer 0 says of itself that it is the number 3")
    refused(zoo({}), "holds no dict 'layers'")
    refused(zoo({0: 1}, format_version=2), "format_version = the number 2, known is 1")
    refused({"format_version": 1, "layers": {0: {"rotation": torch.ones(3, 4)}}}, r"has shape .3, 4., expected .d, d.")
    refused({"format_version": 1, "layers": {0: {"rotation": torch.eye(3).int()}}}, "holds Int, expected float64")

    buffer = io.BytesIO()
    torch.save(zoo({0: 1}), buffer)
    (folder / "k_cut.pt").write_bytes(buffer.getvalue()[:-30])
    refuses(kvlab, "convert", "k_cut.pt", "out.h5", says="no ZIP archive")
    torch.save(zoo({0: 1}), folder / "k_old.pt", _use_new_zipfile_serialization=False)
    refuses(kvlab, "convert", "k_old.pt", "out.h5", says="no ZIP archive")
    (folder / "cut.safetensors").write_bytes(struct.pack("<Q", 500) + b"{}")
    refuses(kvlab, "convert", "cut.safetensors", "out.h5", says="cut short")
    refuses(kvlab, "convert", "k_r.npz", "out.h5", says="suffix must be .h5, .pt or .safetensors")
    torch.save(zoo({0: 1}), folder / "k_r.pt")
    refuses(kvlab, "convert", "k_r.pt", "k_r.pt", says="would be read and written")
    for name in ("model.safetensors", "v_r.pt", "notes.h5"):
        (kvlab.folder / name).write_bytes(b"dear to somebody")
    refuses(kvlab, "convert", "k_r.pt", "model.safetensors", says="is there already; remove it or choose another name")
    refuses(kvlab, "convert", "k_r.pt", "v_r.pt", "--side", "key", says="is there already")
    refuses(kvlab, "convert", "k_r.pt", "notes.h5", says="notes.h5")
    for name in ("model.safetensors", "v_r.pt", "notes.h5"):
        assert (kvlab.folder / name).read_bytes() == b"dear to somebody"
    refuses(kvlab, "convert", "k_r.pt", "out.h5", "--dtype", "fp16", says="kvlab.rotation/1 holds float64")
