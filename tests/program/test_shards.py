"""Parts of an experiment: --shard, --only, and `merge` (contract sections 2 and 6)."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab
from results_file import OTHER_THREADS, assert_same, rows

# An axis of words and numbers: a shard that sees only one of them must not change the column of the whole.
EXPERIMENT = {
    "methods": ["bf16", "kivi", "int2_naive", "kcvt_base"],
    "sweep": {"grid": {"key.codec.clip": ["none", 0.9], "group": [32, 64]}},
    "seeds": [0, 1],
    "exclude": [{"when": {"method": "kivi", "group": 64}, "reason": "not in the published grid"}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    write(folder, **EXPERIMENT)
    kvlab = Kvlab(folder)
    kvlab.ok("run", "small.yaml", "--out", "whole.h5")
    for shard in (1, 2, 3):
        kvlab.ok("run", "small.yaml", "--shard", f"{shard}/3", "--out", f"shard{shard}.h5")
    return folder


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 1, 2)])
def test_shards_merged_equal_one_run(folder: Path, order: tuple[int, ...]) -> None:
    kvlab = Kvlab(folder)
    kvlab.ok("merge", "merged.h5", *(f"shard{shard}.h5" for shard in order))
    assert_same(folder / "merged.h5", folder / "whole.h5")
    assert kvlab.ok("table", "merged.h5", "--format", "csv").out == kvlab.ok("table", "whole.h5", "--format", "csv").out
    assert kvlab("inspect", "merged.h5", "--verify").code == 0


def test_shards_divide_the_cells(folder: Path) -> None:
    parts = [{row["cell"] for row in rows(folder / f"shard{shard}.h5")} for shard in (1, 2, 3)]
    whole = {row["cell"] for row in rows(folder / "whole.h5")}
    assert set.union(*parts) == whole and sum(map(len, parts)) == len(whole)
    assert all(parts)


def test_merge_of_a_file_with_itself_changes_nothing(folder: Path) -> None:
    Kvlab(folder).ok("merge", "twice.h5", "whole.h5", "whole.h5")
    assert_same(folder / "twice.h5", folder / "whole.h5")


def test_merge_of_some_shards_leaves_the_rest_to_do(folder: Path) -> None:
    kvlab = Kvlab(folder)
    merged = kvlab.ok("merge", "some.h5", "shard1.h5", "shard3.h5")
    missing = len(rows(folder / "whole.h5")) - len(rows(folder / "some.h5"))
    sentence = f"{missing} of the experiment's {len(rows(folder / 'whole.h5'))} rows are missing: a shard is not in"
    assert missing > 0 and sentence in merged.err
    assert sentence in kvlab.ok("status", "some.h5").out and sentence in kvlab.ok("table", "some.h5").out
    assert json.loads(kvlab.ok("status", "some.h5", "--json").out)["missing_rows"] == missing
    for verb in ("status", "table"):
        assert "are missing" not in kvlab.ok(verb, "whole.h5").out
    outcome = json.loads(kvlab.ok("run", "small.yaml", "--out", "some.h5", "--json").out)
    assert outcome["reused"] > 0 and outcome["complete"] > outcome["reused"]
    assert_same(folder / "some.h5", folder / "whole.h5", OTHER_THREADS)


def test_more_shards_than_cells(kvlab: Kvlab) -> None:
    """An empty shard is a file without rows, which merges like any other. A run of one cell gives it all threads."""
    write(kvlab.folder, methods=["bf16", "kivi"])
    kvlab.ok("run", "small.yaml", "--out", "whole.h5")
    runs = [kvlab.ok("run", "small.yaml", "--shard", f"{shard}/3", "--out", f"shard{shard}.h5") for shard in (1, 2, 3)]
    assert "shard 1/3 has no cells: the experiment has only 2 cells" in runs[0].err
    assert sorted(len(rows(kvlab.folder / f"shard{shard}.h5")) for shard in (1, 2, 3)) == [0, 1, 1]
    kvlab.ok("merge", "merged.h5", "shard1.h5", "shard2.h5", "shard3.h5")
    assert_same(kvlab.folder / "merged.h5", kvlab.folder / "whole.h5", OTHER_THREADS)


def test_merge_of_different_experiments_is_refused(kvlab: Kvlab, folder: Path) -> None:
    (kvlab.folder / "a.h5").write_bytes((folder / "shard1.h5").read_bytes())
    write(kvlab.folder, **EXPERIMENT | {"probes": {"count": 4}})
    kvlab.ok("run", "small.yaml", "--shard", "2/3", "--out", "b.h5")
    outcome = kvlab.refused("merge", "out.h5", "a.h5", "b.h5")
    assert "b.h5: holds another experiment: probes.count is 8 in a.h5 and 4 in b.h5" in outcome.err


def test_merge_of_different_code_is_refused(kvlab: Kvlab, folder: Path) -> None:
    """D100: results of different code are not mixed."""
    for name in ("a.h5", "b.h5"):
        (kvlab.folder / name).write_bytes((folder / "shard1.h5").read_bytes())
    with h5py.File(kvlab.folder / "b.h5", "a") as file:
        file.attrs["code_version"] = "0123456789abcdef"
    assert "0123456789abcdef" in kvlab.refused("merge", "out.h5", "a.h5", "b.h5").err


def test_merge_replaces_no_file_that_holds_more(kvlab: Kvlab, folder: Path) -> None:
    """A name typed wrong must cost no results; the same merge once more is welcome."""
    for name in ("shard1", "whole"):
        (kvlab.folder / f"{name}.h5").write_bytes((folder / f"{name}.h5").read_bytes())
    outcome = kvlab.refused("merge", "whole.h5", "shard1.h5")
    assert "whole.h5: is there already, with" in outcome.err and "complete cells that no input has" in outcome.err
    write(kvlab.folder, "other.yaml", **EXPERIMENT | {"probes": {"count": 4}})
    kvlab.ok("run", "other.yaml", "--out", "other.h5", "--shard", "1/9")
    assert "holds another experiment (probes.count" in kvlab.refused("merge", "other.h5", "shard1.h5").err
    kvlab.ok("merge", "whole.h5", "shard1.h5", "whole.h5")
    assert_same(kvlab.folder / "whole.h5", folder / "whole.h5")
    kvlab.ok("merge", "whole.h5", str(folder / "whole.h5"))


def test_only_runs_the_named_methods(kvlab: Kvlab) -> None:
    """By id or by label; the next run adds the others and computes these no more."""
    methods = ["bf16", "kivi", {"use": "kivi", "label": "sinks", "set": {"window.sink": 4}}, "hadamard"]
    write(kvlab.folder, methods=methods)
    kvlab.ok("run", "small.yaml", "--only", "sinks", "--only", "hadamard")
    assert [row["label"] for row in rows(kvlab.folder / "small.h5")] == ["sinks", "hadamard"]
    kvlab.ok("run", "small.yaml", "--only", "kivi")
    assert [row["label"] for row in rows(kvlab.folder / "small.h5")] == ["kivi", "sinks", "hadamard"]
    outcome = json.loads(kvlab.ok("run", "small.yaml", "--json").out)
    assert (outcome["complete"], outcome["reused"]) == (4, 3)
    assert [row["row"] for row in rows(kvlab.folder / "small.h5")] == [0, 1, 2, 3]


def test_shards_of_what_only_selects(kvlab: Kvlab) -> None:
    write(kvlab.folder, dataset=synthetic())
    kvlab.ok("run", "small.yaml", "--only", "kivi", "--only", "bf16", "--shard", "2/2")
    assert [row["method"] for row in rows(kvlab.folder / "small.h5")] == ["kivi"]
