"""Where results cannot go: exit 2 with one sentence, and nothing half-written (issue, section 4; D88, D89)."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import synthetic, write
from kvlab_program import Kvlab, Outcome, program_path
from results_file import rows, states


def in_a_small_disk(script: str, folder: Path, size: str) -> Outcome:
    """Runs a shell script in a mount namespace of its own, where `disk` is an empty file system of this size."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare to mount a small file system")
    (folder / "disk").mkdir()
    mount = f'mount -t tmpfs -o size={size} tmpfs disk || exit 99\n{script}'
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", str(program_path())], cwd=folder,
                          capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == 99 or done.stderr.startswith("unshare:"):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    return Outcome(done.returncode, done.stdout, done.stderr)


def assert_one_sentence(outcome: Outcome, *words: str, code: int = 2) -> None:
    errors = [line for line in outcome.err.splitlines() if line.startswith("kvlab: ")]
    assert outcome.code == code and len(errors) == 1, outcome.err
    assert outcome.err.splitlines()[-1] == errors[0], outcome.err
    assert all(word in errors[0] for word in words), outcome.err


def test_read_only_folder(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    outcome = in_a_small_disk(
        'mount -o remount,ro disk\n"$1" run small.yaml --out disk/small.h5; code=$?; ls -A disk; exit $code',
        kvlab.folder, "1m")
    assert_one_sentence(outcome, "disk/small.h5", "Read-only file system")
    assert outcome.out == ""


def test_folder_that_is_a_file(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    (kvlab.folder / "taken").write_text("", encoding="utf-8")
    outcome = kvlab.refused("run", "small.yaml", "--out", "taken/small.h5")
    assert_one_sentence(outcome, "taken/small.h5")


def test_output_that_is_a_folder(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    (kvlab.folder / "small.h5").mkdir()
    assert_one_sentence(kvlab.refused("run", "small.yaml"), "small.h5")


@pytest.mark.parametrize("out", ["", "made/"])
@pytest.mark.parametrize("option", [["--out"], ["--dry-run", "--out"]])
def test_output_that_names_no_file(out: str, option: list[str], kvlab: Kvlab) -> None:
    """No folder is made for it."""
    write(kvlab.folder)
    outcome = kvlab.refused("run", "small.yaml", *option, out)
    assert_one_sentence(outcome, f"the output '{out}' names no file to write")


def test_full_disk_from_the_start(kvlab: Kvlab) -> None:
    """Not even the plan fits: no file is left that a reader could take for results."""
    write(kvlab.folder)
    outcome = in_a_small_disk(
        '"$1" run small.yaml --out disk/small.h5; code=$?; ls -A disk; exit $code', kvlab.folder, "16k")
    assert_one_sentence(outcome, "disk/small.h5: ", "No space left on device")
    assert outcome.out == ""


def test_disk_that_fills_up(kvlab: Kvlab) -> None:
    """Some cells fit: the run ends with one sentence, the file opens, what was finished is there, nothing is torn."""
    write(kvlab.folder, measure=["error", "tokens"], seeds=list(range(10)), dataset=synthetic(tokens=512))
    outcome = in_a_small_disk(
        '"$1" run small.yaml --out disk/small.h5 --jobs 1; code=$?\n'
        '"$1" status disk/small.h5 >status.txt 2>&1; cp -r disk copy; exit $code', kvlab.folder, "700k")
    assert_one_sentence(outcome, "disk/small.h5: ", "No space left on device", code=1)
    copy = kvlab.folder / "copy/small.h5"
    done = len(list(Path(f"{copy}.parts").glob("[0-9a-f]*.h5"))) + list(states(copy).values()).count("complete")
    assert 0 < done < 40
    status = (kvlab.folder / "status.txt").read_text(encoding="utf-8")
    assert f"complete {done:>11}" in status, status
    names = {path.name for path in (kvlab.folder / "copy").rglob("*")}
    assert not [name for name in names if name.endswith(".tmp") or name.endswith(".lock")], names
    kvlab.ok("run", "small.yaml", "--out", "copy/small.h5")
    assert set(states(copy).values()) == {"complete"} and not Path(f"{copy}.parts").exists()


def test_a_table_for_a_full_disk_leaves_no_file(kvlab: Kvlab, small: Path) -> None:
    shutil.copy(small, kvlab.folder / "small.h5")
    outcome = in_a_small_disk(
        'head -c 1m /dev/zero >disk/filler 2>/dev/null\n'
        '"$1" table small.h5 --out disk/table.txt; code=$?; ls -A disk; exit $code', kvlab.folder, "64k")
    assert_one_sentence(outcome, "disk/table.txt")
    assert outcome.out == "filler\n"


def limited(folder: Path, limit: int, *arguments: str) -> Outcome:
    """Runs a command whose files may grow no further than this."""
    done = subprocess.run([str(program_path()), *arguments], cwd=folder, capture_output=True, text=True, timeout=120,
                          check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_results_that_find_no_room(kvlab: Kvlab) -> None:
    """At whatever byte of the final file the disk is full: one sentence, the parts stay, and no other file is left.

    HDF5 1.10 crashes when a file is closed that could not be written to its end.
    """
    write(kvlab.folder, measure=["error", "tokens"], dataset=synthetic(tokens=512), seeds=[0, 1, 2, 3])
    kvlab.ok("run", "small.yaml", "--out", "whole.h5")
    size = (kvlab.folder / "whole.h5").stat().st_size
    with kvlab.start("run", "small.yaml", "--jobs", "1") as run:
        assert run.wait_until(lambda: run.finished_cells() >= 8)
        run.process.kill()
        run.process.wait()
    parts = {path.name for path in (kvlab.folder / "small.h5.parts").glob("[0-9a-f]*.h5")}
    assert len(parts) >= 8
    before = (kvlab.folder / "small.h5").read_bytes()
    for share in (0.02, 0.2, 0.4, 0.6, 0.8, 0.97):
        outcome = limited(kvlab.folder, int(share * size), "merge", "merged.h5", "whole.h5")
        assert_one_sentence(outcome, "merged.h5: cannot be written: File too large")
        outcome = limited(kvlab.folder, int(share * len(before)), "run", "small.yaml")
        assert_one_sentence(outcome, "small.h5: cannot be written: File too large")
        assert (kvlab.folder / "small.h5").read_bytes() == before
        assert parts == {path.name for path in (kvlab.folder / "small.h5.parts").glob("[0-9a-f]*.h5")}
        names = [path.name for path in kvlab.folder.rglob("*")]
        assert not [name for name in names if name.endswith((".tmp", ".lock")) or name == "merged.h5"], names
    kvlab.ok("run", "small.yaml")
    assert set(states(kvlab.folder / "small.h5").values()) == {"complete"}


def test_finished_cells_that_cannot_be_folded_in(kvlab: Kvlab) -> None:
    """Parts are small and fit, the file of them all does not: the message says where they are."""
    write(kvlab.folder, measure=["error", "tokens"], dataset=synthetic(tokens=512), seeds=list(range(10)))
    kvlab.ok("run", "small.yaml", "--out", "whole.h5")
    limit = (kvlab.folder / "whole.h5").stat().st_size - 5000
    outcome = limited(kvlab.folder, limit, "run", "small.yaml", "--out", "small.h5")
    assert_one_sentence(outcome, "small.h5: cannot be written: File too large", "40 finished cells stay in small.h5.parts")
    assert len(list((kvlab.folder / "small.h5.parts").glob("[0-9a-f]*.h5"))) == 40
    again = json.loads(kvlab.ok("run", "small.yaml", "--json").out)
    assert (again["complete"], again["reused"]) == (40, 40)


def test_links_that_lead_round_in_a_circle(kvlab: Kvlab, small: Path) -> None:
    write(kvlab.folder)
    shutil.copy(small, kvlab.folder / "good.h5")
    (kvlab.folder / "a.h5").symlink_to("b.h5")
    (kvlab.folder / "b.h5").symlink_to("a.h5")
    for command in (["run", "small.yaml", "--out", "a.h5"], ["status", "a.h5"], ["merge", "a.h5", "good.h5"],
                    ["table", "good.h5", "--out", "a.h5"]):
        assert_one_sentence(kvlab.refused(*command), "a.h5: its symbolic links lead round in a circle")


@pytest.mark.parametrize("kind", ["version", "text", "truncated", "capture"])
def test_an_output_that_is_no_results_file_is_left_alone(kind: str, kvlab: Kvlab, small: Path) -> None:
    """Whatever a user has by that name, a run never writes over it."""
    write(kvlab.folder)
    output = kvlab.folder / "small.h5"
    words = {"version": "kvlab.results/2", "text": "HDF5", "truncated": "truncated", "capture": "kvlab.capture/1"}
    if kind == "text":
        output.write_text("my notes\n", encoding="utf-8")
    elif kind == "truncated":
        output.write_bytes(small.read_bytes()[:-4000])
    else:
        shutil.copy(small, output)
        with h5py.File(output, "a") as file:
            file.attrs["schema"] = words[kind]
    assert_one_sentence(kvlab.refused("run", "small.yaml"), "small.h5", words[kind])


def test_a_link_stays_a_link(kvlab: Kvlab) -> None:
    """Results that a link leads to, perhaps on another disk, are replaced there."""
    write(kvlab.folder)
    (kvlab.folder / "disk").mkdir()
    (kvlab.folder / "small.h5").symlink_to("disk/real.h5")
    kvlab.ok("run", "small.yaml")
    assert (kvlab.folder / "small.h5").is_symlink()
    assert set(states(kvlab.folder / "disk/real.h5").values()) == {"complete"}
    assert sorted(path.name for path in (kvlab.folder / "disk").iterdir()) == ["real.h5"]


def test_calibrate_writes_over_nothing_but_rotations(kvlab: Kvlab, small: Path) -> None:
    write_capture(kvlab.folder / "cal.h5", {0: random_layer(0)})
    shutil.copy(small, kvlab.folder / "small.h5")
    outcome = kvlab.refused("calibrate", "oscar_cov", "--data", "cal.h5", "--out", "small.h5")
    assert_one_sentence(outcome, "small.h5", "kvlab.rotation/1", "kvlab.results/1")
    outcome = kvlab.refused("calibrate", "oscar_cov", "--data", "cal.h5", "--out", "")
    assert_one_sentence(outcome, "the output '' names no file to write")
    for _ in range(2):
        assert "fewer than 16 x head dimension = 1024" in kvlab.ok(
            "calibrate", "oscar_cov", "--data", "cal.h5", "--out", "r.h5").err


def test_calibrate_refuses_what_a_run_refuses(kvlab: Kvlab) -> None:
    """Contract section 4.4: fewer query rows than the head dimension."""
    positions = np.arange(31)
    write_capture(kvlab.folder / "cal.h5", {0: random_layer(0, positions=positions)}, positions=positions)
    assert_one_sentence(kvlab.refused("calibrate", "oscar_cov", "--data", "cal.h5", "--out", "r.h5"),
                        "62 query rows a KV head, fewer than the head dimension 64")


def test_an_output_of_another_experiment_is_left_alone(kvlab: Kvlab, small: Path) -> None:
    shutil.copy(small, kvlab.folder / "small.h5")
    write(kvlab.folder, name="other")
    assert_one_sentence(kvlab.refused("run", "small.yaml"), "small.h5", "'small'", "'other'", "--out")


def test_d89_a_second_run_is_refused_and_readers_work(kvlab: Kvlab) -> None:
    """While one run writes: a second one exits 2 and names the first; status, table and h5py read the file."""
    write(kvlab.folder, dataset=synthetic(tokens=8192, q_heads=16), probes={"placement": "all"},
          methods=["bf16", "kivi", "int2_naive", "hadamard", "oscar_ots"])
    with kvlab.start("run", "small.yaml", "--jobs", 1) as run:
        assert run.wait_until(lambda: (kvlab.folder / "small.h5").exists())
        second = kvlab("run", "small.yaml")
        assert_one_sentence(second, "small.h5: another run is writing it", f"process {run.process.pid}")
        with h5py.File(kvlab.folder / "small.h5") as file:
            assert len(file["summary/cell"]) == 5
        status = kvlab.ok("status", "small.h5").out
        assert f"being written by process {run.process.pid}" in status
        assert re.search(r"pending +[1-5]$", status, re.MULTILINE) and "interrupted" not in status
        kvlab.ok("table", "small.h5")
        assert run.process.poll() is None, "the first run goes on"
    # Killed: the lock went with it.
    assert json_status(kvlab)["running"] == ""
    assert len(rows(kvlab.folder / "small.h5")) == 5


def json_status(kvlab: Kvlab) -> dict[str, object]:
    return json.loads(kvlab.ok("status", "small.h5", "--json").out)


def test_a_torn_part_is_told_and_left_alone(kvlab: Kvlab) -> None:
    """D88: half a part, as a crash of the machine may leave it, is no result; the cell is computed again."""
    write(kvlab.folder, methods=["kivi"])
    kvlab.ok("run", "small.yaml")
    (cell,) = states(kvlab.folder / "small.h5")
    parts = kvlab.folder / "small.h5.parts"
    parts.mkdir()
    (parts / f"{cell}.h5").write_bytes((kvlab.folder / "small.h5").read_bytes()[:3000])
    (kvlab.folder / "small.h5").unlink()
    outcome = kvlab.ok("run", "small.yaml")
    assert states(kvlab.folder / "small.h5") == {cell: "complete"}
    assert not (parts / f"{cell}.h5").exists() or "torn" in outcome.err


@pytest.mark.parametrize(("name", "content"), [
    ("small.h5", None), ("results.txt", None), ("small.yaml", b"schema: 1"), ("picture.png", b"\x89PNG"), ("LICENSE", b"MIT"),
    ("binary.csv", b"\x7fELF\0")])
def test_a_table_replaces_nothing_but_tables(kvlab: Kvlab, small: Path, name: str, content: bytes | None) -> None:
    """A forgotten word must not cost the results, an experiment or a picture."""
    shutil.copy(small, kvlab.folder / "small.h5")
    before = small.read_bytes() if content is None else content
    (kvlab.folder / name).write_bytes(before)
    assert_one_sentence(kvlab.refused("table", "small.h5", "--out", name), name, "give --out another name")
    assert (kvlab.folder / name).read_bytes() == before


@pytest.mark.parametrize("name", ["t.txt", "t.md", "t.tex", "t.csv"])
def test_a_table_of_before_is_replaced(kvlab: Kvlab, small: Path, name: str) -> None:
    (kvlab.folder / name).write_text("a table of before, longer than the new one\n" * 1000, encoding="utf-8")
    assert kvlab.ok("table", str(small), "--out", name).out == ""
    assert (kvlab.folder / name).read_text("utf-8") == kvlab.ok("table", str(small)).out


def test_a_table_makes_its_folder_and_goes_to_no_device(kvlab: Kvlab, small: Path) -> None:
    """Its folder is made, as a run's; a bad command makes none."""
    kvlab.refused("table", str(small), "--value", "wo_real", "--out", "none/t.md")
    assert not (kvlab.folder / "none").exists()
    kvlab.ok("table", str(small), "--out", "new/folder/t")
    assert [path.name for path in (kvlab.folder / "new/folder").iterdir()] == ["t"]
    assert_one_sentence(kvlab.refused("table", str(small), "--out", "/dev/null"), "/dev/null: expected a file", "device")
    assert_one_sentence(kvlab.refused("table", str(small), "--out", "new"), "new: expected a file", "folder")


def test_two_names_of_one_file_have_one_lock(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    (kvlab.folder / "disk").mkdir()
    (kvlab.folder / "small.h5").symlink_to("disk/real.h5")
    lock = kvlab.folder / "disk" / "real.h5.lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert_one_sentence(kvlab.refused("run", "small.yaml"), "small.h5", "another run")
