"""`kvlab diff`: two runs compared cell by cell, as a check of a change would do it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from experiment_text import synthetic, write
from kvlab_program import REPOSITORY, Kvlab
from results_file import rows

METHODS = ["kivi", "oscar_ots"]
COARSER = [{"use": "kivi", "set": {"group": 64}, "label": "kivi"}, "oscar_ots"]


@pytest.fixture
def pair(kvlab: Kvlab) -> Kvlab:
    """a.h5 and b.h5, which differ in the groups of kivi alone."""
    write(kvlab.folder, methods=METHODS)
    kvlab.ok("run", "small.yaml", "--out", "a.h5")
    write(kvlab.folder, methods=COARSER)
    kvlab.ok("run", "small.yaml", "--out", "b.h5")
    return kvlab


def wo_rel(path: Path, label: str) -> float:
    (value,) = [row["wo_rel"] for row in rows(path) if row["label"] == label]
    return value


def test_a_file_equals_itself(kvlab: Kvlab, small: Path) -> None:
    outcome = kvlab.ok("diff", small, small, "--fail-above", "wo_rel=0")
    assert outcome.out.startswith("equal in every cell") and outcome.err == ""
    changes = json.loads(kvlab.ok("diff", small, small, "--json").out)["changes"]
    assert changes and all(change["difference"] == 0 for change in changes if change["difference"] is not None)


def test_what_changed_is_shown_and_a_limit_fails(pair: Kvlab) -> None:
    by = wo_rel(pair.folder / "b.h5", "kivi") - wo_rel(pair.folder / "a.h5", "kivi")
    assert by > 0
    found = json.loads(pair.ok("diff", "a.h5", "b.h5", "--json").out)
    (change,) = [one for one in found["changes"] if one["label"] == "kivi" and one["metric"] == "wo_rel"]
    assert change["difference"] == pytest.approx(by) and change["cells"] == 1 and change["low"] is None
    text = pair.ok("diff", "a.h5", "b.h5").out
    assert "kivi " in text and "oscar_ots" not in text.split("equal in every cell")[0]

    assert pair.ok("diff", "a.h5", "b.h5", "--fail-above", f"wo_rel={by * 1.01}").code == 0
    failed = pair("diff", "a.h5", "b.h5", "--fail-above", f"wo_rel={by * 0.99}")
    assert failed.code == 1 and "worse: kivi got worse by" in failed.out
    assert pair("diff", "a.h5", "b.h5", "--fail-above", "wo_rel=0.1%", "--json").code == 1
    assert pair.ok("diff", "b.h5", "a.h5", "--fail-above", "wo_rel=0").code == 0


def test_other_inputs_are_refused_unless_told(pair: Kvlab) -> None:
    write(pair.folder, methods=METHODS, dataset=synthetic(passage=1))
    pair.ok("run", "small.yaml", "--out", "other.h5")
    refused = pair.refused("diff", "a.h5", "other.h5")
    assert "the dataset of low_norm_sink, layer 0 is not the same in both files" in refused.err
    assert "inputs differ" in pair.ok("diff", "a.h5", "other.h5", "--allow", "inputs").out


def test_other_probes_are_other_inputs(pair: Kvlab) -> None:
    write(pair.folder, methods=METHODS, probes={"count": 4, "placement": "strided"})
    pair.ok("run", "small.yaml", "--out", "other.h5")
    refused = pair.refused("diff", "a.h5", "other.h5")
    assert "the probes of low_norm_sink, layer 0 are not the same in both files" in refused.err
    assert "inputs differ" in pair.ok("diff", "a.h5", "other.h5", "--allow", "inputs").out


def test_whole_steps_are_compared(kvlab: Kvlab) -> None:
    """Columns that benchmarks alone have, of a file of the GPU's."""
    file = REPOSITORY / "results/h200/model.h5"
    said = kvlab.ok("diff", file, file, "--value", "step_us", "--fail-above", "step_us=1%").out
    assert said.startswith("equal in every cell: ") and said.count("\n") == 1
    assert kvlab.ok("diff", file, file).out.startswith("equal in every cell: ")
    assert "no metric 'step_su' (did you mean 'step_us'?)" in kvlab.refused("diff", file, file, "--fail-above", "step_su=1%").err
    assert "'wo_rel' was not measured in both files" in kvlab.refused("diff", file, file, "--value", "wo_rel").err
