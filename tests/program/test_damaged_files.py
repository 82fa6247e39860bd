"""Files with flipped bytes: HDF5 1.10 crashes or goes round in circles on some, and the program must do neither."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import h5py
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import write
from kvlab_program import TRACES, Kvlab, program_path

FLIPS = 12  # of each kind of file
PATIENCE = 60.0  # seconds; ten on a machine that is free
STRUCTURE = 6000  # bytes at the beginning that hold much of what HDF5 follows


def write_chunked(path: Path, source: Path) -> None:
    """The capture once more, in small compressed chunks, whose index is a tree without checksums."""
    with h5py.File(source) as old, h5py.File(path, "w") as new:
        new.attrs.update(old.attrs)

        def copy(name: str, item: h5py.Group | h5py.Dataset) -> None:
            if isinstance(item, h5py.Dataset):
                new.create_dataset(name, data=item[()], compression=1, shuffle=True,
                                   chunks=tuple(max(1, size // 4) for size in item.shape))
            else:
                new.create_group(name)
            new[name].attrs.update(item.attrs)

        old.visititems(copy)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files and of experiments that read them as `damaged.h5`."""
    folder = tmp_path_factory.mktemp("sound")
    kvlab = Kvlab(folder)
    write_capture(folder / "capture.h5", {0: random_layer(0, tokens=64, head_dim=16)})
    write_chunked(folder / "chunked.h5", folder / "capture.h5")
    kvlab.ok("calibrate", "oscar_cov", "--data", "capture.h5", "--out", "rotation.h5")
    write(folder, methods=["bf16", "kivi"])
    kvlab.ok("run", "small.yaml", "--out", "results.h5")
    write(folder, "of_capture.yaml", name="of_capture", methods=["int2_naive"], output="out.h5",
          dataset={"source": "capture", "path": "damaged.h5"})
    write(folder, "of_rotation.yaml", name="of_rotation", output="out.h5",
          dataset={"source": "capture", "path": "capture.h5"},
          methods=[{"use": "int2_naive", "set": {"key.rotate": "file:damaged.h5"}}])
    return folder


COMMANDS = {
    "results": [["status", "damaged.h5"], ["table", "damaged.h5"], ["inspect", "damaged.h5", "--verify"],
                ["merge", "out.h5", "damaged.h5"], ["run", "small.yaml", "--out", "damaged.h5"]],
    "capture": [["inspect", "damaged.h5", "--verify"], ["run", "of_capture.yaml"],
                ["calibrate", "oscar_cov", "--data", "damaged.h5", "--out", "out.h5"]],
    "rotation": [["inspect", "damaged.h5", "--verify"], ["run", "of_rotation.yaml"]],
}
COMMANDS["chunked"] = COMMANDS["capture"]


def flipped(data: bytes, rng: random.Random) -> bytes:
    """One byte or many, anywhere or where HDF5 keeps most of its structure."""
    damaged = bytearray(data)
    end = len(data) if rng.random() < 0.4 else min(len(data), STRUCTURE)
    for _ in range(rng.choice([1, 1, 4, 16, 200])):
        at = rng.randrange(end)
        damaged[at] = rng.choice([0, 0xFF, damaged[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
    return bytes(damaged)


def check(folder: Path, command: list[str], seed: object) -> None:
    """The program ends by itself, with an exit code of the contract and a plain message."""
    done = subprocess.run([str(program_path()), *command], cwd=folder, capture_output=True, timeout=PATIENCE, check=False)
    err = done.stderr.decode(errors="replace")
    assert done.returncode in (0, 1, 2), f"{command}, flips of seed {seed}: exit {done.returncode}\n{err}"
    assert not [trace for trace in TRACES if trace in err], err
    assert done.returncode != 2 or "kvlab: " in err


@pytest.mark.parametrize("kind", COMMANDS)
def test_flipped_bytes_never_end_the_program(kind: str, kvlab: Kvlab, sound: Path) -> None:
    for seed in range(FLIPS):
        rng = random.Random(f"{kind} {seed}")
        folder = kvlab.folder / str(seed)
        shutil.copytree(sound, folder)
        (folder / "damaged.h5").write_bytes(flipped((sound / f"{kind}.h5").read_bytes(), rng))
        check(folder, rng.choice(COMMANDS[kind]), seed)


def heap(data: bytes) -> int:
    """Where HDF5 keeps strings of variable length: a global heap."""
    at = data.find(b"GCOL")
    assert at > 0
    return at


@pytest.mark.parametrize(("kind", "command"), [("results", ["status", "damaged.h5"]),
                                               ("capture", ["calibrate", "oscar_cov", "--data", "damaged.h5",
                                                            "--out", "out.h5"])])
def test_a_heap_that_leads_round_in_a_circle(kind: str, command: list[str], kvlab: Kvlab, sound: Path) -> None:
    """An object of the heap without a size: HDF5 1.10 looks for the next one for ever, or runs out of its memory."""
    folder = kvlab.folder / "heap"
    shutil.copytree(sound, folder)
    for size in (0, 0xFF):
        data = bytearray((sound / f"{kind}.h5").read_bytes())
        first = heap(bytes(data)) + 16  # after the heap's own header: index 2, references 2, reserved 4, size 8
        data[first + 8 : first + 16] = bytes([size] * 8)
        (folder / "damaged.h5").write_bytes(data)
        check(folder, command, f"size {size}")
