"""`kvlab table` as a command: its lists of columns, and tables that pdflatex sets."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from experiment_text import write
from kvlab_program import REPOSITORY, Kvlab


def test_lists_may_be_repeated_or_have_commas(kvlab: Kvlab, small: Path) -> None:
    """Whatever stands behind a list is the file and no part of it."""
    expected = kvlab.ok("table", str(small), "--rows", "label,layer", "--value", "wo_rel,k_nmse").out
    assert kvlab.ok("table", "--rows", "label", "--rows", "layer", "--value", "wo_rel", "--value", "k_nmse",
                    str(small)).out == expected
    assert kvlab.ok("table", str(small), "--rows", " label , layer,", "--value", "wo_rel,k_nmse").out == expected
    for repeated in (["--rows", "label,label"], ["--rows", "label", "--rows", "label"], ["--value", "wo_rel,wo_rel"]):
        assert "stands there twice" in kvlab.refused("table", str(small), *repeated).err
    for empty in ("", ",", " "):
        assert "--rows: expected a name" in kvlab.refused("table", str(small), "--rows", empty).err
    assert "both in --rows and in --cols" in kvlab.refused("table", str(small), "--rows", "layer", "--cols", "layer").err


def test_lists_of_diff_leave_the_files_alone(kvlab: Kvlab, small: Path) -> None:
    said = kvlab.ok("diff", "--value", "wo_rel", "--allow", "gpu", "--fail-above", "wo_rel=1", "--fail-above", "k_nmse=5%",
                    str(small), str(small)).out
    assert kvlab.ok("diff", str(small), str(small), "--value", "wo_rel", "--fail-above", "wo_rel=1",
                    "--fail-above", "k_nmse=5%").out == said


LABELS = ["[2pt] first", "*", "ρ ≤ 0.5 · ‖Ô − O‖²", "a_b & 50% #1 $x$ {y} ~^\\", "中文 x̂", "½ µs → ∞ Ð þ «»", "\"quoted\" | <b>"]


def test_any_label_is_set_by_pdflatex(kvlab: Kvlab) -> None:
    """With no package but booktabs, whose rules stand for themselves where it is not installed."""
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex: apt-get install texlive-latex-base")
    write(kvlab.folder, methods=[{"use": "kivi", "label": label, "set": {"value.codec.clip": 0.99 - i / 100}}
                                 for i, label in enumerate(LABELS)])
    kvlab.ok("run", "small.yaml")
    table = kvlab.ok("table", "small.h5", "--format", "latex", "--rows", "label").out
    rules = r"\IfFileExists{booktabs.sty}{\usepackage{booktabs}}{\let\toprule\hline\let\midrule\hline\let\bottomrule\hline}"
    (kvlab.folder / "t.tex").write_text(
        f"\\documentclass{{article}}\n{rules}\n\\begin{{document}}\n\\footnotesize\n{table}\\end{{document}}\n", encoding="utf-8")
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=kvlab.folder,
                          capture_output=True, text=True, errors="replace", timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    assert "Missing character" not in (kvlab.folder / "t.log").read_text("utf-8", errors="replace")
    rows = [line for line in table.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + len(LABELS) and len({row.replace(r"\&", "").count("&") for row in rows}) == 1


def test_the_tables_of_the_gpu_average_nothing(kvlab: Kvlab) -> None:
    """Each command of results/h200/README.md prints one cell a line."""
    folder = REPOSITORY / "results/h200"
    commands = re.findall(r"kvlab table [^`\n]+", (folder / "README.md").read_text(encoding="utf-8"))
    assert len(commands) == 4
    for command in commands:
        lines = list(csv.DictReader(io.StringIO(kvlab.ok(*command.rstrip(".").split()[1:], "--format", "csv", cwd=folder).out)))
        assert lines and {line["cells"] for line in lines} <= {"0", "1"}, command
