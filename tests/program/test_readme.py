"""The README's commands and experiment files are run as they stand, where that needs no model and is quick."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from experiment_text import write
from kvlab_program import REPOSITORY, Kvlab
from results_file import rows, states

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[list[str]]:
    """Every kvlab command of the README, in the text too, without the program's name."""
    lines = "\n".join(blocks("sh")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("build/bin/kvlab ")]
    return [words[1:] for words in found]


@pytest.fixture
def clone(kvlab: Kvlab) -> Kvlab:
    """A folder in which the README's paths lead to the repository's own files; results go to the folder itself."""
    for name in ("datasets", "experiments", "README.md"):
        (kvlab.folder / name).symlink_to(REPOSITORY / name)
    return kvlab


def test_there_are_commands() -> None:
    verbs = [words[0] for words in commands()]
    assert {"run", "validate", "table"} <= set(verbs) and len(verbs) >= 6


def test_the_ablation_example_runs(clone: Kvlab, smollm2: Path) -> None:
    """The YAML of "Run an ablation" with the three commands below it, letter by letter."""
    (text,) = [block for block in blocks("yaml") if "my_ablation" in block]
    (clone.folder / "my_ablation.yaml").write_text(text, encoding="utf-8")
    mine = [words for words in commands() if any("my_ablation" in word for word in words)]
    assert [words[0] for words in mine] == ["validate", "run", "table"]
    outputs = [clone.ok(*words).out for words in mine]
    assert "rotation only" in outputs[-1]
    assert {row["layer"] for row in rows(clone.folder / "results/my_ablation.h5")} == {0, 10, 28}


def test_the_ablation_example_is_valid_without_a_model(kvlab: Kvlab) -> None:
    (text,) = [block for block in blocks("yaml") if "my_ablation" in block]
    text = re.sub(r"dataset: .*", "dataset: {source: synthetic, tokens: 256, head_dim: 64}", text)
    (kvlab.folder / "my_ablation.yaml").write_text(text, encoding="utf-8")
    kvlab.ok("run", "my_ablation.yaml")
    assert [row["label"] for row in rows(kvlab.folder / "results/my_ablation.h5")] == ["oscar_ots", "rotation only"]


def test_the_method_example_runs(kvlab: Kvlab) -> None:
    """The recipe of "Add a method", inline in an experiment."""
    (text,) = [block for block in blocks("yaml") if "kivi_rotated" in block]
    write(kvlab.folder, methods=None)
    with (kvlab.folder / "small.yaml").open("a", encoding="utf-8") as file:
        file.write(text)
    kvlab.ok("run", "small.yaml")
    (row,) = rows(kvlab.folder / "small.h5")
    assert row["method"] == "kivi_rotated" and row["status"] == "complete"


def test_the_sweep_commands(clone: Kvlab, smollm2: Path) -> None:
    """The dry run as it stands; the run at a small size, since it takes minutes; the table as it stands."""
    sweep = [words for words in commands() if any("group_window" in word for word in words)]
    dry, run, table = sweep
    assert "--dry-run" in dry
    assert re.search(r"\d+ cells, \d+ rows; about", clone.ok(*dry).out)
    clone.ok(*run, "--only", "kivi", "--only", "hadamard", "--set", "dataset.0.layers=[10]", "--set", "probes.count=8")
    shown = clone.ok(*table).out
    assert shown.startswith("wo_rel by window.recent (rows) and group (columns)")


def test_the_own_model_command(clone: Kvlab, smollm2: Path) -> None:
    """With one's own captures in the demo's experiment: here the demo's, at one layer and three methods."""
    (own,) = [words for words in commands() if "results/mine.h5" in words]
    shutil.copy(smollm2 / "eval_austen.h5", clone.folder / "kv.h5")
    (clone.folder / "calibration.h5").symlink_to(smollm2 / "calibration.h5")
    clone.ok(*own, "--only", "kivi", "--only", "oscar_cov", "--set", "dataset.layers=[10]", "--set", "probes.count=8")
    assert set(states(clone.folder / "results/mine.h5").values()) == {"complete"}


def test_the_verbs_named_in_the_text(kvlab: Kvlab, small: Path) -> None:
    """`kvlab show METHOD`, `list components`, `inspect FILE.h5 --verify`, `--shard 2/8`: they exist as written."""
    for phrase in ("kvlab show METHOD", "kvlab list components", "kvlab inspect FILE.h5 --verify", "--shard 2/8",
                   "kvlab merge"):
        assert phrase in README
    kvlab.ok("show", "oscar_ots")
    kvlab.ok("list", "components")
    kvlab.ok("inspect", small, "--verify")
    write(kvlab.folder)
    kvlab.ok("run", "small.yaml", "--shard", "2/8", "--dry-run")
