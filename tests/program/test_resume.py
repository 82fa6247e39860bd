"""Runs that end early: killed or interrupted at any moment they lose at most the cells under way (D87, D88)."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import h5py
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab, Running, program_path
from results_file import OTHER_THREADS, assert_same, rows, states

KILLS = 25
# 2 seeds x 5 methods x 6 windows = 60 rows; bf16 has no window, so it is one cell a seed.
MANY = {
    "methods": ["bf16", "int2_naive", "kcvt_base", "hadamard", "oscar_ots"],
    "sweep": {"grid": {"window.recent": [0, 32, 64, 96, 128, 160]}},
    "seeds": [0, 1],
    "measure": ["error", "memory"],
}
CELLS = 50


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the many cells in one go, and beside them seconds.txt, the time that it took."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    write(folder, **MANY)
    begin = time.monotonic()
    Kvlab(folder).ok("run", "small.yaml")
    (folder / "seconds.txt").write_text(str(time.monotonic() - begin), encoding="utf-8")
    assert len(states(folder / "small.h5")) == CELLS
    return folder / "small.h5"


def complete_cells(results: Path) -> set[str]:
    """Ids of complete cells in the file and its parts. Whatever is there must open."""
    found = set()
    if results.exists():
        found = {cell for cell, state in states(results).items() if state == "complete"}
    for part in Path(f"{results}.parts").glob("[0-9a-f]*.h5"):
        with h5py.File(part) as file:
            assert file[f"cells/{part.stem}"].attrs["status"] == "complete"
        found.add(part.stem)
    return found


def kill_somewhere(run: Running, whole: float, rng: random.Random) -> None:
    """SIGKILL at a random time, or just after a random cell, the last one too, when parts are folded in."""
    if rng.random() < 0.4:
        end = time.monotonic() + rng.uniform(0, whole)
        run.wait_until(lambda: time.monotonic() > end)
    else:
        wanted = rng.choice([1, 2, 4, 8, 16])
        run.wait_until(lambda: run.finished_cells() >= wanted)
        time.sleep(rng.uniform(0, 0.05))
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGKILL)
    run.process.wait()


def test_d87_d88_kill_at_random_moments(kvlab: Kvlab, uninterrupted: Path) -> None:
    """After each kill the file opens, `status` works and no finished cell is gone; the end equals one run's."""
    rng = random.Random(20260726)
    whole = float((uninterrupted.parent / "seconds.txt").read_text(encoding="utf-8"))
    write(kvlab.folder, **MANY)
    results = kvlab.folder / "small.h5"
    known: set[str] = set()
    kills = finished = 0
    while kills < KILLS:
        with kvlab.start("run", "small.yaml") as run:
            kill_somewhere(run, whole, rng)
            killed = run.process.returncode == -signal.SIGKILL
            assert killed or run.process.returncode == 0, run.err
        complete = complete_cells(results)
        assert known <= complete, f"{len(known - complete)} finished cells vanished"
        known = complete
        if results.exists():
            status = json.loads(kvlab.ok("status", "small.h5", "--json").out)
            assert status["states"]["complete"] == len(complete)
            assert status["cells"] == CELLS and status["stale"] == [] and status["ignored_parts"] == []
        kills += killed
        if not killed:
            # It came to its end between the kills: compare, and begin again.
            assert_same(results, uninterrupted, OTHER_THREADS)
            results.unlink()
            known, finished = set(), finished + 1
    kvlab.ok("run", "small.yaml")
    assert_same(results, uninterrupted, OTHER_THREADS)
    assert kvlab("inspect", "small.h5", "--verify").code == 0
    left = {path.name for path in kvlab.folder.iterdir()} - {"small.yaml", "small.h5", "calibrations"}
    assert not left, f"left behind: {left}"


def test_second_run_computes_nothing(kvlab: Kvlab) -> None:
    """Resume trusts the cell id: all cells are reused, and the file keeps what it held."""
    write(kvlab.folder)
    first = json.loads(kvlab.ok("run", "small.yaml", "--json").out)
    kept = (kvlab.folder / "small.h5").read_bytes()
    (kvlab.folder / "before.h5").write_bytes(kept)
    outcome = kvlab.ok("run", "small.yaml", "--json")
    second = json.loads(outcome.out)
    assert (first["complete"], first["reused"]) == (4, 0)
    assert (second["complete"], second["reused"], second["left"]) == (4, 4, 0)
    assert "4 of 4 cells are complete already" in outcome.err and "[1/" not in outcome.err
    assert_same(kvlab.folder / "before.h5", kvlab.folder / "small.h5")
    with h5py.File(kvlab.folder / "before.h5") as a, h5py.File(kvlab.folder / "small.h5") as b:
        assert all(a["cells"][cell].attrs["seconds"] == b["cells"][cell].attrs["seconds"] for cell in a["cells"])


def test_rerun_computes_again(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    kvlab.ok("run", "small.yaml")
    (kvlab.folder / "before.h5").write_bytes((kvlab.folder / "small.h5").read_bytes())
    again = json.loads(kvlab.ok("run", "small.yaml", "--rerun", "--json").out)
    assert (again["complete"], again["reused"]) == (4, 0)
    assert_same(kvlab.folder / "before.h5", kvlab.folder / "small.h5")
    with h5py.File(kvlab.folder / "before.h5") as a, h5py.File(kvlab.folder / "small.h5") as b:
        assert any(a["cells"][cell].attrs["seconds"] != b["cells"][cell].attrs["seconds"] for cell in a["cells"])


def change_a_number(results: Path) -> str:
    """As a bad disk or an editor would: a number of one cell, wherever it stands."""
    with h5py.File(results, "a") as file:
        name, cell = next((name, cell) for name, cell in file["cells"].items() if "metrics" in cell)
        cell["metrics/k_nmse"][()] = 0.0001
        scalars = cell.attrs["scalars"]
        scalars[list(cell.attrs["scalar_names"]).index("k_nmse")] = 0.0001
        cell.attrs["scalars"] = scalars
    return name


def test_a_damaged_cell_is_computed_again(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    kvlab.ok("run", "small.yaml")
    results = kvlab.folder / "small.h5"
    (kvlab.folder / "before.h5").write_bytes(results.read_bytes())
    cell = change_a_number(results)
    plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json").out)
    assert [one["state"] for one in plan["cells"] if one["id"] == cell] == ["run"]
    refused = kvlab.refused("merge", "merged.h5", "small.h5")
    assert f"small.h5: 1 cell is not what was written: the checksum differs, as of {cell}" in refused.err
    outcome = kvlab.ok("run", "small.yaml", "--json")
    assert f"cell {cell} is not what was written, its checksum differs: it is computed again" in outcome.err
    again = json.loads(outcome.out)
    assert (again["complete"], again["reused"]) == (4, 3)
    assert_same(kvlab.folder / "before.h5", results)


def test_an_interrupted_rerun_says_how_to_go_on(kvlab: Kvlab) -> None:
    """The same command would begin from the start."""
    write(kvlab.folder, **MANY)
    with subprocess.Popen([str(program_path()), "run", "small.yaml", "--jobs", "1", "--rerun"], cwd=kvlab.folder,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        for _ in range(4):
            run.stderr.readline()
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert run.returncode == 130, err
    assert "the same command without --rerun goes on from here" in out


def test_a_changed_experiment_keeps_what_it_still_has(kvlab: Kvlab) -> None:
    """Another method is added: only its cell is computed. One is taken out: its cell is stale, not a row (D100)."""
    write(kvlab.folder, methods=["bf16", "kivi"])
    kvlab.ok("run", "small.yaml")
    write(kvlab.folder, methods=["kivi", "hadamard"])
    second = json.loads(kvlab.ok("run", "small.yaml", "--json").out)
    assert (second["complete"], second["reused"]) == (2, 1)
    status = json.loads(kvlab.ok("status", "small.h5", "--json").out)
    assert status["cells"] == 2 and len(status["stale"]) == 1
    assert [row["method"] for row in rows(kvlab.folder / "small.h5")] == ["kivi", "hadamard"]


def test_d100_cells_of_other_code_are_stale_and_computed_anew(kvlab: Kvlab) -> None:
    """A file of another code version: `status` says stale, the table mixes nothing in, a new run computes all."""
    write(kvlab.folder, methods=["kivi"])
    kvlab.ok("run", "small.yaml")
    with h5py.File(kvlab.folder / "small.h5", "a") as file:
        (cell,) = file["cells"].values()
        cell.attrs["code_version"] = "0123456789abcdef"
    status = json.loads(kvlab.ok("status", "small.h5", "--json").out)
    assert "0123456789abcdef" in status["stale"][0]["reason"]
    assert "0123456789abcdef" in kvlab.ok("status", "small.h5").out
    table = kvlab.ok("table", "small.h5")
    assert table.out.splitlines()[2].split()[1] == "-" and "stale" in table.out


def patience() -> float:
    """Two seconds, as promised, on a machine that is free; more where others keep it busy."""
    return 2.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def interrupt(run: Running, number: signal.Signals) -> None:
    begin = time.monotonic()
    run.process.send_signal(number)
    assert run.process.wait(timeout=60) == 130, run.err
    assert time.monotonic() - begin < patience()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_d87_a_signal_ends_the_run_and_the_next_goes_on(number: signal.Signals, kvlab: Kvlab,
                                                        uninterrupted: Path) -> None:
    write(kvlab.folder, **MANY)
    results = kvlab.folder / "small.h5"
    with kvlab.start("run", "small.yaml", "--jobs", 1) as run:
        assert run.wait_until(lambda: run.finished_cells() >= 3)
        interrupt(run, number)
    complete = sum(state == "complete" for state in states(results).values())
    assert 3 <= complete < CELLS and not Path(f"{results}.parts").exists(), "finished cells are in the file itself"
    assert set(states(results).values()) == {"complete", "interrupted"}
    table = [row for row in rows(results) if row["status"] == "interrupted"]
    assert table and all(row["reason"] for row in table)
    assert "interrupted" in kvlab.ok("status", "small.h5").out
    second = json.loads(kvlab.ok("run", "small.yaml", "--json").out)
    assert (second["reused"], second["complete"]) == (complete, CELLS)
    assert_same(results, uninterrupted, OTHER_THREADS)


def test_a_signal_loses_no_cell_that_was_being_stored(kvlab: Kvlab) -> None:
    """The count that is printed is that of the file, and no part is left outside it."""
    write(kvlab.folder, **MANY)
    results = kvlab.folder / "small.h5"
    rng = random.Random(7)
    for _ in range(8):
        results.unlink(missing_ok=True)
        with subprocess.Popen([str(program_path()), "run", "small.yaml", "--jobs", "2", "--json"], cwd=kvlab.folder,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            for _ in range(rng.randrange(2, 30)):  # a header and some cells
                run.stderr.readline()
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=60)
        assert run.returncode in (0, 130), err
        assert not Path(f"{results}.parts").exists()
        assert json.loads(out)["complete"] == list(states(results).values()).count("complete")


def test_d87_a_signal_within_a_long_cell_ends_it(kvlab: Kvlab) -> None:
    """All probes of 8,192 tokens take several seconds; the run must not wait for them."""
    write(kvlab.folder, dataset=synthetic(tokens=8192, q_heads=16), probes={"placement": "all"}, methods=["kivi"])
    with kvlab.start("run", "small.yaml") as run:
        assert run.wait_until(lambda: "running 1 cell" in run.err)
        time.sleep(0.5)
        interrupt(run, signal.SIGINT)
    assert list(states(kvlab.folder / "small.h5").values()) == ["interrupted"]


def test_d87_a_signal_while_a_rotation_is_learned_ends_it(kvlab: Kvlab) -> None:
    write(kvlab.folder, dataset=synthetic(tokens=512), calibration=synthetic(tokens=2048, passage=1),
          methods=[{"use": "optr", "set": {"calibrate.steps": 2000}}])
    with kvlab.start("run", "small.yaml") as run:
        assert run.wait_until(lambda: "running 1 cell" in run.err)
        time.sleep(1)
        interrupt(run, signal.SIGTERM)
    assert list(states(kvlab.folder / "small.h5").values()) == ["interrupted"]
