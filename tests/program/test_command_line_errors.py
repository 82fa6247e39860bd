"""A wrong command line: exit 2, a sentence with the nearest name, nothing computed or left (contract section 2)."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from pathlib import Path

import h5py
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab, program_path
from results_file import rows

# arguments: what the message says. `small.yaml` is a good experiment, `small.h5` its results, copied when needed.
COMMANDS: dict[str, tuple[list[str], str]] = {
    "unknown_verb": (["rum", "small.yaml"], r"'rum'.*did you mean 'run'"),
    "unknown_option": (["run", "small.yaml", "--job", "2"], r"--job\b"),
    "no_experiment": (["run"], r"experiment"),
    "one_argument_too_many": (["run", "small.yaml", "more"], r"more"),
    "set_without_value": (["run", "small.yaml", "--set", "probes.count"], r"--set probes\.count.*KEY=VALUE"),
    "set_without_key": (["run", "small.yaml", "--set", "=3"], r"--set =3.*KEY=VALUE"),
    "set_of_an_unknown_key": (["run", "small.yaml", "--set", "probe.count=3"], r"'probe'.*did you mean 'probes'"),
    "set_of_a_wrong_type": (["run", "small.yaml", "--set", "probes.count=many"], r"--set probes\.count.*'many'"),
    "set_out_of_range": (["run", "small.yaml", "--set", "probes.count=0"], r"--set probes\.count.*0"),
    "set_of_broken_yaml": (["run", "small.yaml", "--set", "methods=[kivi"], r"--set methods"),
    "set_below_a_value": (["run", "small.yaml", "--set", "name.x=1"], r"name\.x"),
    "set_of_a_list_index": (["run", "small.yaml", "--set", "methods.9=kivi"], r"'9' is no index of a list of 4"),
    "shard_of_words": (["run", "small.yaml", "--shard", "one"], r"--shard.*I/N.*'one'"),
    "shard_zero": (["run", "small.yaml", "--shard", "0/3"], r"--shard.*'0/3'"),
    "shard_beyond": (["run", "small.yaml", "--shard", "4/3"], r"--shard.*'4/3'"),
    "shard_with_a_tail": (["run", "small.yaml", "--shard", "1/3x"], r"--shard.*'1/3x'"),
    "jobs_zero": (["run", "small.yaml", "--jobs", "0"], r"--jobs.*0"),
    "jobs_words": (["run", "small.yaml", "--jobs", "all"], r"--jobs.*all"),
    "unknown_only": (["run", "small.yaml", "--only", "kivvi"], r"--only.*'kivvi'.*did you mean 'kivi'"),
    "only_with_dry_run": (["run", "small.yaml", "--dry-run", "--only", "kivvi"], r"--only.*'kivvi'"),
    "backend_unknown": (["run", "small.yaml", "--backend", "gpu"], r"'gpu'"),
    "diff_missing": (["diff", "a.h5", "b.h5"], r"a\.h5.*no such file"),
    "diff_unknown_metric": (["diff", "small.h5", "small.h5", "--fail-above", "worel=1"], r"no metric 'worel'.*'wo_rel'"),
    "diff_allow_unknown": (["diff", "small.h5", "small.h5", "--allow", "input"], r"inputs or gpu.*did you mean 'inputs'"),
    "claims_missing": (["claims", "nowhere.h5"], r"nowhere\.h5.*no such file"),
    "unknown_format": (["table", "small.h5", "--format", "cvs"], r"'cvs'.*did you mean 'csv'"),
    "unknown_rows": (["table", "small.h5", "--rows", "lable"], r"--rows.*'lable'.*did you mean 'label'"),
    "unknown_cols": (["table", "small.h5", "--cols", "lable"], r"--cols.*'lable'.*did you mean 'label'"),
    "unknown_value": (["table", "small.h5", "--value", "wo_rell"], r"--value.*'wo_rell'.*did you mean 'wo_rel'"),
    "unknown_name": (["table", "small.h5", "--name", "nothing"], r"'nothing'"),
    "list_unknown": (["list", "method"], r"'method' cannot be listed.*did you mean 'methods'"),
    "show_unknown": (["show", "kivvi"], r"'kivvi'.*did you mean 'kivi'"),
    "d86_show_oscar": (["show", "oscar"], r"oscar_cov.*oscar_ots|oscar_ots.*oscar_cov"),
    "calibrate_nothing_to_do": (["calibrate", "kivi", "--data", "kv.h5", "--out", "r.h5"], r"kivi needs no calibration"),
    "calibrate_missing": (["calibrate", "oscar_cov", "--data", "kv.h5", "--out", "r.h5"], r"kv\.h5.*no such file"),
    "merge_of_nothing": (["merge", "out.h5"], r"inputs"),
    "merge_missing": (["merge", "out.h5", "nowhere.h5"], r"nowhere\.h5.*no such file"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_command(name: str, kvlab: Kvlab, small: Path) -> None:
    arguments, message = COMMANDS[name]
    write(kvlab.folder)
    if "small.h5" in arguments:
        shutil.copy(small, kvlab.folder / "small.h5")
    outcome = kvlab.refused(*arguments)
    assert re.search(message, outcome.err, re.IGNORECASE), outcome.err
    assert len(outcome.mistakes) == 1, outcome.err


def test_the_program_alone_shows_its_help(kvlab: Kvlab) -> None:
    outcome = kvlab()
    assert outcome.code == 2 and outcome.out == "" and "SUBCOMMANDS" in outcome.err.upper()


def test_a_path_that_cannot_be_looked_up(kvlab: Kvlab, small: Path) -> None:
    """Not `no such file`: what the system says."""
    for verb in ("validate", "run", "table", "inspect"):
        outcome = kvlab.refused(verb, "x" * 300)
        assert "File name too long" in outcome.err and len(outcome.mistakes) == 1, outcome.err


def test_memory_that_is_not_there(kvlab: Kvlab) -> None:
    """A cell that needs more than there is fails with a sentence; the others are measured."""
    large = synthetic(tokens=1 << 23, kv_heads=64, q_heads=64, head_dim=256)
    write(kvlab.folder, dataset=[synthetic(tokens=256), large], methods=["kivi"])
    done = subprocess.run([str(program_path()), "run", "small.yaml", "--jobs", "1"], cwd=kvlab.folder, text=True,
                          capture_output=True, check=False, timeout=300,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)))
    assert done.returncode == 1, done.stderr
    table = rows(kvlab.folder / "small.h5")
    assert [row["status"] for row in table] == ["complete", "failed"]
    assert table[1]["reason"].startswith("out of memory"), table[1]["reason"]


@pytest.mark.parametrize("verb", [["status"], ["table"], ["claims"], ["inspect"], ["merge", "out.h5"]])
@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "truncated", "capture", "version"])
def test_a_results_file_that_is_none(verb: list[str], kind: str, kvlab: Kvlab, small: Path) -> None:
    """D88: reading a file that is cut, foreign or of another version says what it is."""
    path = kvlab.folder / "bad.h5"
    message = {"missing": r"no such file", "folder": r"folder|directory", "empty": r"HDF5|empty", "text": r"HDF5",
               "truncated": r"truncated", "capture": r"schema|results", "version": r"kvlab\.results/2"}[kind]
    if kind == "folder":
        path.mkdir()
    elif kind in ("empty", "text"):
        path.write_text("words\n" if kind == "text" else "", encoding="utf-8")
    elif kind == "truncated":
        path.write_bytes(small.read_bytes()[:-5000])
    elif kind != "missing":
        shutil.copy(small, path)
        with h5py.File(path, "a") as file:
            file.attrs["schema"] = "kvlab.capture/1" if kind == "capture" else "kvlab.results/2"
    if verb == ["inspect"] and kind in ("capture", "version"):
        pytest.skip("inspect shows any HDF5 file; --verify judges it")
    outcome = kvlab.refused(*verb, "bad.h5")
    assert "bad.h5" in outcome.err and re.search(message, outcome.err, re.IGNORECASE), outcome.err
    assert len(outcome.mistakes) == 1, outcome.err


def test_inspect_verify_finds_what_is_wrong(kvlab: Kvlab, small: Path) -> None:
    """D88, checksums: one changed number in one cell is found, and named; an untouched file has no problem."""
    shutil.copy(small, kvlab.folder / "small.h5")
    assert kvlab("inspect", "small.h5", "--verify").code == 0
    with h5py.File(kvlab.folder / "small.h5", "a") as file:
        cell = next(iter(file["cells"]))
        file[f"cells/{cell}/metrics/wo_rel"][()] = 0.5
    outcome = kvlab("inspect", "small.h5", "--verify")
    assert outcome.code == 1 and cell in outcome.out and "checksum" in outcome.out


def test_output_that_cannot_be_delivered_is_an_error(kvlab: Kvlab, small: Path) -> None:
    """`kvlab table … > t.csv` on a full disk must not look like a success."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([str(program_path()), "table", str(small), "--format", "csv"], stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2 and "standard output" in done.stderr
