"""What each verb prints, and where: results on stdout, everything else on stderr (contract section 2)."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import synthetic, write
from kvlab_program import Kvlab, contents, program_path
from results_file import rows

PRESETS = """bf16 int2_naive int2_naive_symmetric int2_naive_windows kivi kivi_g128 kcvt_base token_scale hadamard
oscar_ots quarot quarot_token quarot_windows quarot_windows_centered oscar_cov oscar_cov_exact oscar_cov_centered optr
oscar_optr""".split()
VERBS = ["run", "validate", "list", "show", "status", "merge", "table", "diff", "claims", "calibrate", "inspect"]
ESCAPE = "\033"


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_that_parses(verb: str, kvlab: Kvlab) -> None:
    text = kvlab.ok(verb, "--help").out
    assert "Example" in text, text
    examples = re.findall(rf"kvlab {verb} [^\n]*", text[text.index("Example"):])
    assert examples, text
    # Its options exist: what is refused is the missing file, never the command line.
    for example in examples:
        outcome = kvlab(*example.removeprefix("kvlab ").split())
        assert "not expected" not in outcome.err and "no kvlab command" not in outcome.err, outcome.err


def test_help_and_version_of_the_program(kvlab: Kvlab) -> None:
    text = kvlab.ok("--help").out
    assert all(re.search(rf"^\s+{verb}\b", text, re.MULTILINE) for verb in VERBS)
    assert re.match(r"kvlab \d+\.\d+\.\d+", kvlab.ok("--version").out)


def test_dry_run_prints_cells_and_runs_nothing(kvlab: Kvlab) -> None:
    write(kvlab.folder, methods=["bf16", "kivi", "kcvt_base"], sweep={"grid": {"window.recent": [0, 128, 100]}})
    before = contents(kvlab.folder)
    text = kvlab.ok("run", "small.yaml", "--dry-run")
    plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json").out)
    assert contents(kvlab.folder) == before
    # bf16 once; kivi and kcvt_base at R = 0 and 128, and once unsupported each.
    assert [cell["state"] for cell in plan["cells"]].count("run") == 5 and len(plan["cells"]) == 7
    assert plan["rows"] == 9 and plan["estimated_seconds"] > 0 and plan["estimated_bytes"] > 0
    lines = text.out.splitlines()
    assert len(lines) == 8 and re.match(r"7 cells, 9 rows; about .* of results", lines[-1])
    assert all(line.startswith(cell["id"][:12]) for line, cell in zip(lines, plan["cells"], strict=False))
    assert text.err == ""


def test_dry_run_names_points_and_knows_what_is_stored(kvlab: Kvlab) -> None:
    """Each cell by dataset, layer, label, point and seed, like the lines of progress; complete ones are no work."""
    write(kvlab.folder, methods=[{"use": "kivi", "label": "mine"}], seeds=[0, 1],
          sweep={"grid": {"tokens": [128, 256], "window.recent": [32, 64]}})
    lines = kvlab.ok("run", "small.yaml", "--dry-run").out.splitlines()
    assert len(set(line[14:] for line in lines)) == 9
    name = "low_norm_sink layer 0, mine, tokens 256, window.recent 32, seed 1"
    assert [name in line for line in lines].count(True) == 1
    assert name + " complete" in kvlab.ok("run", "small.yaml", "--set", "sweep.grid.tokens=[256]", "--out", "one.h5").err
    kvlab.ok("run", "small.yaml", "--only", "mine", "--shard", "1/2")
    for arguments, stored in (([], 4), (["--rerun"], 0), (["--shard", "2/2"], 0)):
        plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json", *arguments).out)
        assert [cell["state"] for cell in plan["cells"]].count("stored") == stored
    kvlab.ok("run", "small.yaml")
    plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json").out)
    assert {cell["state"] for cell in plan["cells"]} == {"stored"} and plan["estimated_bytes"] == 0
    write(kvlab.folder, name="other")
    assert "holds the experiment 'small'" in kvlab.refused("run", "small.yaml", "--dry-run").err


def test_exclusions_that_meet_nothing_are_told(kvlab: Kvlab) -> None:
    write(kvlab.folder, exclude=[{"when": {"method": "kivi", "layer": 7}, "reason": "x"}])
    for command in (["validate", "small.yaml"], ["run", "small.yaml", "--dry-run"]):
        assert re.search(r"^kvlab: warning: .*small.yaml:7:\d+: the exclusion .* leaves nothing out$",
                         kvlab.ok(*command).err, re.MULTILINE)


def test_dry_run_selects_like_a_run(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    plan = json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json", "--only", "kivi").out)
    assert [cell["config"]["method"]["id"] for cell in plan["cells"]] == ["kivi"] and plan["rows"] == 1


def test_validate_says_what_is_there(kvlab: Kvlab) -> None:
    write(kvlab.folder, seeds=[0, 1])
    assert kvlab.ok("validate", "small.yaml").out == "small.yaml: valid, 8 cells, 8 rows\n"
    assert not (kvlab.folder / "small.h5").exists()


@pytest.mark.parametrize("what", ["methods", "datasets", "metrics", "backends", "components"])
def test_list(what: str, kvlab: Kvlab) -> None:
    items = json.loads(kvlab.ok("list", what, "--json").out)
    text = kvlab.ok("list", what).out
    assert items and all(item["name"] in text for item in items)
    assert text.split()[0] == "name"  # a heading
    if what == "methods":
        assert [item["name"] for item in items][:len(PRESETS)] == PRESETS  # methods of later parts stand behind them
    if what == "metrics":
        assert {"wo_rel", "attn_kl", "bits_at_128k"} <= {item["name"] for item in items}
    if what == "backends":
        available = {item["name"]: item["available"] for item in items}
        assert available["reference"] and available["cpu"]
        assert available["cuda"] or "backend cuda is not available here: " in text


def test_components_fit_a_screen(kvlab: Kvlab) -> None:
    """But for the help, which is last: long lists of parameters go over several lines."""
    items = json.loads(kvlab.ok("list", "components", "--json").out)
    text = kvlab.ok("list", "components").out
    helps = {item["help"] for item in items}
    widths = [len(line) - max((len(help) for help in helps if help and line.endswith(help)), default=0)
              for line in text.splitlines()]
    assert max(widths) < 110
    for item in items:
        assert all(param in text for param in item["params"].split(", "))


@pytest.mark.parametrize("method", ["kivi", "oscar_ots", "optr"])
def test_show(method: str, kvlab: Kvlab) -> None:
    shown = json.loads(kvlab.ok("show", method, "--json").out)
    assert shown["id"] == method and {"key", "value", "window"} <= shown["recipe"].keys()
    assert shown["source"]["paper"] and "published_bits" in shown
    assert shown["packed"] is True
    text = kvlab.ok("show", method).out
    assert "backends (at d = 128): reference, cpu, cuda" in text
    bits = shown["published_bits"]
    assert f"published bits per element: {'none known' if bits is None else f'{bits:g}'}" in text
    assert shown["source"]["paper"] in text and all(sentence in text for sentence in shown["source"]["differs"])


def test_status_and_inspect(kvlab: Kvlab, small: Path) -> None:
    shutil.copy(small, kvlab.folder / "small.h5")
    status = json.loads(kvlab.ok("status", "small.h5", "--json").out)
    assert status["states"]["complete"] == 4 and status["cells"] == status["rows"] == 4
    assert re.search(r"complete\s+4", kvlab.ok("status", "small.h5").out)
    for options in ([], ["--verify"]):
        inspected = json.loads(kvlab.ok("inspect", "small.h5", "--json", *options).out)
        assert inspected["schema"] == "kvlab.results/1"
    assert "kvlab.results/1" in kvlab.ok("inspect", "small.h5").out


def test_calibrate_writes_a_rotation_that_a_recipe_reads(kvlab: Kvlab) -> None:
    """kvlab.rotation/1: as made by `calibrate`, `rotate: file:` gives what the calibration in place gives."""
    write_capture(kvlab.folder / "kv.h5", {3: random_layer(0)})
    write_capture(kvlab.folder / "cal.h5", {3: random_layer(1, tokens=512)}, token_ids=np.arange(512) + 999)
    made = kvlab.ok("calibrate", "oscar_cov", "--data", "cal.h5", "--out", "rotation.h5")
    assert "rotation.h5" in made.out and "1 layer " in made.out
    assert json.loads(kvlab.ok("inspect", "rotation.h5", "--verify", "--json").out)["schema"] == "kvlab.rotation/1"
    write(kvlab.folder, dataset={"source": "capture", "path": "kv.h5"}, methods=[
        "oscar_cov", {"use": "oscar_cov", "label": "file", "set": {
            "key.rotate": "file:rotation.h5", "value.rotate": "file:rotation.h5"}}],
        calibration={"source": "capture", "path": "cal.h5"})
    kvlab.ok("run", "small.yaml")
    own, file = rows(kvlab.folder / "small.h5")
    assert own["cell"] != file["cell"]
    assert file["out_rel"] == pytest.approx(own["out_rel"], rel=1e-6)


def test_stdout_is_clean(kvlab: Kvlab) -> None:
    """Progress and warnings on stderr only; CSV is CSV; JSON is JSON; nothing is coloured in a pipe."""
    write(kvlab.folder)
    outcome = kvlab.ok("run", "small.yaml", "--json")
    assert json.loads(outcome.out)["complete"] == 4
    assert len(re.findall(r"^\[\d/4\] low_norm_sink layer 0, \w+, seed 0 complete \([\d.]+ s\)$", outcome.err, re.MULTILINE)) == 4
    table = kvlab.ok("table", "small.h5", "--format", "csv")
    records = list(csv.DictReader(io.StringIO(table.out)))
    assert len(records) == 4 and float(records[0]["wo_rel"]) >= 0
    assert table.err == ""
    for text in (outcome.out, outcome.err, table.out, kvlab.ok("table", "small.h5").out):
        assert ESCAPE not in text


def test_no_progress_is_quiet(kvlab: Kvlab) -> None:
    write(kvlab.folder)
    assert kvlab.ok("run", "small.yaml", "--no-progress").err == ""


@pytest.mark.parametrize(("form", "start"), [("text", "label"), ("markdown", "| label |"), ("csv", "label,")])
def test_table_formats_and_files(form: str, start: str, kvlab: Kvlab, small: Path) -> None:
    shutil.copy(small, kvlab.folder / "small.h5")
    printed = kvlab.ok("table", "small.h5", "--format", form).out
    assert printed.startswith(start)
    written = kvlab.ok("table", "small.h5", "--format", form, "--out", "tables/t.txt")
    assert written.out == ""
    assert (kvlab.folder / "tables/t.txt").read_text(encoding="utf-8") == printed


def test_d101_the_table_says_what_differs_between_its_rows(kvlab: Kvlab, small: Path) -> None:
    """D07, D09: rows of unlike grids, groups or windows are flagged under the table."""
    shutil.copy(small, kvlab.folder / "small.h5")
    text = kvlab.ok("table", "small.h5").out
    for word in ("grid: ", "window: ", "group: "):
        assert f"differs between methods: {word}" in text
    assert "head_dim 64, 2 KV heads, 4 query heads, 256 tokens, bf16" in text


def on_a_terminal(arguments: list[str], folder: Path, **environment: str) -> str:
    """What the program writes where both stdout and stderr are a terminal."""
    leader, follower = pty.openpty()
    done = subprocess.Popen([str(program_path()), *arguments], cwd=folder, stdout=follower, stderr=follower,
                            stdin=subprocess.DEVNULL, env={**os.environ, **environment})
    os.close(follower)
    text = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # Linux says so where the other side is closed
            break
        if not block:
            break
        text += block
    os.close(leader)
    assert done.wait() == 0, text
    return text.decode()


def test_terminal_shows_a_bar_with_rate_and_time_left(kvlab: Kvlab) -> None:
    write(kvlab.folder, dataset=synthetic(tokens=512))
    text = on_a_terminal(["run", "small.yaml"], kvlab.folder)
    assert re.search(r"\[#+\.*\] \d/4 +[\d.]+ cells/s +\S+ .*left", text), text
    assert re.search(r"4 cells complete in .*small\.h5", text)


def test_no_color_is_honoured(kvlab: Kvlab, small: Path) -> None:
    shutil.copy(small, kvlab.folder / "small.h5")
    environment = {"NO_COLOR": ""}
    assert ESCAPE + "[1m" in on_a_terminal(["table", "small.h5"], kvlab.folder, **environment)
    assert ESCAPE not in on_a_terminal(["table", "small.h5"], kvlab.folder, NO_COLOR="1")
