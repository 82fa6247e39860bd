"""Every file in experiments/ runs at a small size, and every row is complete but for those of unsupported_rows.txt.

Small: synthetic samples of 512 tokens (1,024 for calibration), layer 10 of captures, 8 probes, 2 steps of learning, three
windows of a sweep: none, one that some groups forbid, and one that all groups divide. Whole models are a random one. The
files are used as they ship, with `--set` alone, so that what a user runs is what is tested.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import h5py
import pytest
import tiny_model
import yaml
from kvlab_program import REPOSITORY, Kvlab
from results_file import rows

# What stands in common/ is no experiment: others include it. Published numbers stand beside one.
EXPERIMENTS = sorted(path for path in (REPOSITORY / "experiments").rglob("*.yaml")
                     if path.parent.name != "common" and not path.name.endswith(".published.yaml"))
PASSAGE = "{source: capture, path: datasets/smollm2/eval_jargon.h5, layers: [10]}"
SHAPE = "source: synthetic, pattern: low_norm_sink, kv_heads: 2, q_heads: 4, head_dim: 128"
PATTERN = f"{{{SHAPE}, tokens: 512, calibration: {{{SHAPE}, tokens: 1024, passage: 1}}}}"
LISTED = Path(__file__).with_name("unsupported_rows.txt")


def whole_text(experiment: Path) -> str:
    """Of a file and of what it includes."""
    text = experiment.read_text(encoding="utf-8")
    included = yaml.safe_load(text).get("include", [])
    return "\n".join([text, *(whole_text(experiment.parent / name) for name in ([included] if isinstance(included, str) else included))])


def needs_model(text: str) -> bool:
    """Inputs that come from a model's folder."""
    return "source: model" in text or "eval_all.h5" in text


def needs_captures(text: str) -> bool:
    """The demo's files. Patterns of synthetic keys take the place of all of them."""
    return "source: capture" in text and not needs_model(text) and "common/patterns.yaml" not in text


def small_model(text: str, model: Path) -> list[str]:
    """A model experiment on a tiny random model, or on its tensors."""
    edits = [f"calibration.path={model / 'calibration.h5'}"] if "calibration:" in text or "include:" in text else []
    if "needles:" in text:
        edits.append(f"dataset={{source: model, path: {model / 'model'}, needles: {model / 'needles.h5'}}}")
    elif "source: model" not in text:
        edits += [f"dataset.0.path={model / 'calibration.h5'}", "probes.count=8"]
    else:
        edits.append(f"dataset.0.path={model / 'model'}")
        edits += [f"dataset.0.tokens={model / 'text.h5'}", "dataset.0.passages=1", "dataset.0.length=600"]
    if "optr" in text or "include: metric_validity" in text:
        edits.append("sweep.grid.calibrate.steps=[2]")
    return [word for edit in edits for word in ("--set", edit)]


def small_size(experiment: Path, model: Path) -> list[str]:
    """The --set options that make an experiment small."""
    text = experiment.read_text(encoding="utf-8")
    if needs_model(text):
        return small_model(text, model)
    content = yaml.safe_load(text)
    edits = ["probes.count=8"]
    includes = str(content.get("include", ""))
    if "common/passages.yaml" in includes:
        edits.append(f"dataset=[{PASSAGE}]")
    elif "common/patterns.yaml" in includes:
        edits += [f"dataset=[{PATTERN}]", "seeds=[0]"]
    items = content.get("dataset", [])
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        if item["source"] == "capture":
            edits.append(f"dataset.{index}.layers=[10]")
            if "/passages/" in item["path"] or "/long/" in item["path"]:  # which the demo does not make
                edits += [f"dataset.{index}.path=datasets/smollm2/eval_jargon.h5", f"dataset.{index}.label=text {index}"]
        else:
            edits.append(f"dataset.{index}.tokens=512")
        if item.get("calibration", {}).get("source") == "synthetic":
            edits.append(f"dataset.{index}.calibration.tokens=1024")
    if content.get("calibration", {}).get("source") == "synthetic":
        edits.append("calibration.tokens=1024")
    axes = content.get("sweep", {}).get("grid", {})
    if "tokens" in axes:
        edits.append("sweep.grid.tokens=[256, 512]")
    if "batch" in axes:
        edits.append("sweep.grid.batch=[1, 3]")
    if len(axes.get("window.recent", [])) > 4:
        edits.append("sweep.grid.window.recent=[0, 32, 128]")
    if re.search("optr|learned", whole_text(experiment)):
        # An axis of one value edits all methods that have the key.
        edits.append("sweep.grid.calibrate.steps=[2]")
    return [word for edit in edits for word in ("--set", edit)]


def line_of(experiment: Path, row: dict[str, Any], axes: list[str]) -> str:
    """A row as unsupported_rows.txt has it: file | label | axis=value, …"""
    values = ", ".join(f"{axis}={row[axis]}" for axis in axes if axis != "calibrate.steps")
    return " | ".join([experiment.relative_to(REPOSITORY / "experiments").as_posix(), row["label"], values])


def listed() -> set[str]:
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    return {line for line in lines if line and not line.startswith("#")}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


def test_there_are_experiments() -> None:
    names = {path.relative_to(REPOSITORY / "experiments").as_posix() for path in EXPERIMENTS}
    assert {"demo.yaml", "ablations/oscar_ots_parts.yaml", "ablations/oscar_cov_parts.yaml",
            "sweeps/group_window.yaml"} <= names
    assert {line.split(" | ")[0] for line in listed()} <= names, "the list names a file that is gone"


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda path: path.relative_to(REPOSITORY / "experiments").as_posix())
def test_every_row_is_complete_or_listed(experiment: Path, kvlab: Kvlab, model: Path,
                                         request: pytest.FixtureRequest) -> None:
    text = whole_text(experiment)
    if needs_captures(text):
        request.getfixturevalue("smollm2")
    outcome = kvlab.ok("run", experiment, "--out", kvlab.folder / "small.h5", "--json",
                       *small_size(experiment, model), cwd=REPOSITORY)
    assert json.loads(outcome.out)["left"] == 0
    with h5py.File(kvlab.folder / "small.h5") as file:
        axes = list(file["summary"].attrs["axes"])
    table = rows(kvlab.folder / "small.h5")
    unsupported = {line_of(experiment, row, axes) for row in table if row["status"] != "complete"}
    assert {row["status"] for row in table} <= {"complete", "unsupported"}
    assert all(row["reason"] for row in table if row["status"] == "unsupported")
    name = experiment.relative_to(REPOSITORY / "experiments").as_posix()
    expected = {line for line in listed() if line.startswith(f"{name} | ")}
    assert unsupported == expected, "\n".join(sorted(unsupported ^ expected))
    # The table that the file is for.
    assert kvlab.ok("table", "small.h5").out


@pytest.mark.parametrize("experiment", [path for path in EXPERIMENTS if "common/patterns.yaml" in whole_text(path)], ids=lambda path: path.stem)
def test_patterns_need_no_file(experiment: Path, kvlab: Kvlab) -> None:
    """Beside an experiment on captures they take the place of its calibration too."""
    shutil.copytree(REPOSITORY / "experiments", kvlab.folder / "experiments")
    kvlab.ok("run", experiment.relative_to(REPOSITORY), "--dry-run")
