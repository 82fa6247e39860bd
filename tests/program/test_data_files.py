"""Mistakes in the files behind an experiment: all at once, each at its place, exit 2 before anything runs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import write
from kvlab_program import Kvlab
from results_file import rows

LATE = np.arange(192, 256)  # the queries of the last quarter


def capture(folder: Path, name: str = "kv.h5", positions: np.ndarray | None = None, **attributes: Any) -> Path:
    return write_capture(folder / name, {0: random_layer(1, positions=positions)}, positions, **attributes)


def of(name: str, **changes: Any) -> dict[str, Any]:
    return {"source": "capture", "path": name} | changes


def test_all_mistakes_of_files_are_told_at_once(kvlab: Kvlab) -> None:
    """Beside a mistake of the experiment file itself, in the order of their places."""
    for name in ("good.h5", "schema.h5", "without_q.h5", "cut.h5"):
        capture(kvlab.folder, name, schema="kvlab.capture/9" if name == "schema.h5" else "kvlab.capture/1")
    with h5py.File(kvlab.folder / "without_q.h5", "a") as file:
        del file["layer_000/q"]
    whole = (kvlab.folder / "cut.h5").read_bytes()
    (kvlab.folder / "cut.h5").write_bytes(whole[:-5000])
    (kvlab.folder / "wrong.yaml").write_text(
        "schema: 1\n"
        "dataset:\n"
        "  - {source: capture, path: schema.h5}\n"
        "  - {source: capture, path: without_q.h5}\n"
        "  - {source: capture, path: cut.h5}\n"
        "  - {source: capture, path: good.h5, layers: [0, 5, 7]}\n"
        "  - {source: capture, path: good.h5, tokens: 1000, label: long}\n"
        "methods: [kivi]\n"
        "measure: [errr]\n"
        "calibration: {source: capture, path: good.h5, from: 256}\n", encoding="utf-8")
    expected = [
        r"3:5: .*kvlab\.capture/9",
        r"4:5: .*/layer_000/q is missing",
        r"5:5: .*truncated",
        r"6:50: .*no layer 5 \(available: 0\)",
        r"6:53: .*no layer 7",
        r"7:5: .*holds 256 tokens, but those from 0 to 999",
        r"9:11: unknown measure 'errr'",
        r"10:14: .*holds 256 tokens, numbered from 0: none is left from 256 on",
    ]
    for text in (None, "measure: [error]"):  # with and without a mistake of the experiment file itself
        if text:
            file = kvlab.folder / "wrong.yaml"
            file.write_text(file.read_text(encoding="utf-8").replace("measure: [errr]", text), encoding="utf-8")
            expected.pop(-2)
        for verb in ("validate", "run"):
            mistakes = kvlab.refused(verb, "wrong.yaml").mistakes
            assert len(mistakes) == len(expected), mistakes
            for mistake, pattern in zip(mistakes, expected, strict=True):
                assert re.match(rf"wrong\.yaml:{pattern}", mistake), mistake


def test_one_file_under_sixteen_names_is_one_passage(kvlab: Kvlab) -> None:
    """Its cells are shared, and no interval comes out of their repetition."""
    capture(kvlab.folder)
    write(kvlab.folder, dataset=[of("kv.h5", label=f"name{i}") for i in range(16)], methods=["kivi", "int2_naive"])
    kvlab.ok("run", "small.yaml")
    table = rows(kvlab.folder / "small.h5")
    assert len(table) == 32 and len({row["cell"] for row in table}) == 2
    shared = [row["warnings"].splitlines()[-1] for row in table]
    assert all(text.endswith("and 9 more, computed once") and len(text) < 200 for text in shared)
    assert "±" not in kvlab.ok("table", "small.h5").out
    changes = json.loads(kvlab.ok("diff", "small.h5", "small.h5", "--json").out)["changes"]
    assert changes and all(change["passages"] == 1 and change["cells"] == 1 for change in changes)


def test_tokens_without_a_stored_query(kvlab: Kvlab) -> None:
    capture(kvlab.folder, positions=LATE)
    write(kvlab.folder, dataset=of("kv.h5", tokens=192), methods=["kivi"])
    for verb in ("validate", "run"):
        outcome = kvlab.refused(verb, "small.yaml")
        assert re.search(r"small\.yaml:3:\d+: .*kv\.h5: /positions .*no stored query lies in the first 192 tokens",
                         outcome.err)
    write(kvlab.folder, dataset=of("kv.h5"), methods=["kivi"], sweep={"grid": {"tokens": [193, 128]}})
    assert "no stored query lies in the first 128 tokens" in kvlab.refused("validate", "small.yaml").err


def test_keys_before_rope_that_are_not_there(kvlab: Kvlab) -> None:
    """Seen in the header: a row of its own where something else runs, else the experiment is refused."""
    capture(kvlab.folder)
    before = {"use": "kivi", "label": "before", "set": {"key.space": "pre_rope"}}
    write(kvlab.folder, dataset=of("kv.h5"), methods=[before])
    for verb in ("validate", "run"):
        outcome = kvlab.refused(verb, "small.yaml")
        assert "nothing is left to run" in outcome.err and "/layer_000/k_pre is missing" in outcome.err
    write(kvlab.folder, dataset=of("kv.h5"), methods=[before, "kivi"])
    kvlab.ok("run", "small.yaml")
    assert [row["status"] for row in rows(kvlab.folder / "small.h5")] == ["unsupported", "complete"]


def test_a_run_out_of_which_nothing_comes_says_why(kvlab: Kvlab) -> None:
    """Attention that decides what stays needs all queries, which only computing finds out."""
    capture(kvlab.folder, positions=LATE)
    heavy = {"use": "bf16",
             "set": {"evict.kind": "heavy_hitter", "evict.sink": 1, "evict.recent": 20, "evict.heavy": 10}}
    write(kvlab.folder, dataset=of("kv.h5"), methods=[heavy])
    outcome = kvlab("run", "small.yaml", "--no-progress")
    assert outcome.code == 2
    assert "nothing could run:" in outcome.err and "needs all of them" in outcome.err
    assert "1 cell unsupported: " in outcome.err
    outcome = kvlab("run", "small.yaml", "--no-progress", "--rerun", "--json")
    (reason,) = json.loads(outcome.out)["reasons"].items()
    assert outcome.code == 2 and "needs all of them" in reason[0] and reason[1] == 1
    head = kvlab.ok("table", "small.h5").out.splitlines()[0]
    assert "wo_rel" in head and "ppl" not in head and "dnll" not in head


def test_a_metric_without_a_number_in_any_row(kvlab: Kvlab) -> None:
    capture(kvlab.folder)
    write(kvlab.folder, dataset=of("kv.h5"), methods=["kivi"])
    kvlab.ok("run", "small.yaml")
    assert "'wo_rel' is NaN in all rows" in kvlab.refused("table", "small.h5", "--value", "wo_rel").err


OPTIONAL = {
    "k_pre": np.zeros((1, 2, 255, 64), np.float32),
    "grad_k": np.zeros((1, 2, 255, 64), np.float32),
    "grad_v": np.zeros((1, 2, 256, 64), np.int32),
    "hidden_absmax": np.zeros((1, 255), np.float32),
}


@pytest.mark.parametrize("name", OPTIONAL)
def test_optional_datasets_are_checked(name: str, kvlab: Kvlab) -> None:
    with h5py.File(capture(kvlab.folder), "a") as file:
        file[f"layer_000/{name}"] = OPTIONAL[name]
    outcome = kvlab("inspect", "kv.h5", "--verify")
    assert outcome.code == 1 and f"/layer_000/{name} h" in outcome.out, outcome.out
    write(kvlab.folder, dataset=of("kv.h5"), methods=["kivi"])
    assert f"/layer_000/{name} h" in kvlab.refused("validate", "small.yaml").err


def test_token_classes_have_names(kvlab: Kvlab) -> None:
    with h5py.File(capture(kvlab.folder), "a") as file:
        file["token_class"] = np.zeros((1, 256), np.uint8)
    outcome = kvlab("inspect", "kv.h5", "--verify")
    assert outcome.code == 1 and "/token_class has no attribute 'names'" in outcome.out


def test_inspect_lists_a_link_that_leads_nowhere(kvlab: Kvlab) -> None:
    with h5py.File(capture(kvlab.folder), "a") as file:
        del file["layer_000/k"]
        file["layer_000/k"] = h5py.SoftLink("/nowhere")
    for options in ([], ["--verify"]):
        outcome = kvlab("inspect", "kv.h5", *options)
        assert outcome.code == 1 and "/layer_000/k: a link that leads nowhere" in outcome.out, outcome.err
    assert "/layer_000/k is missing" in outcome.out and "/layer_000" in outcome.out


def test_the_shape_is_looked_at_before_the_values(kvlab: Kvlab) -> None:
    with h5py.File(capture(kvlab.folder), "a") as file:
        del file["layer_000/k"]
        file.create_dataset("layer_000/k", (1, 2, 2**40, 64), np.float32, chunks=(1, 1, 256, 64))
    outcome = kvlab("inspect", "kv.h5", "--verify", timeout=60)
    assert outcome.code == 1 and "/layer_000/k has shape [1, 2, 1099511627776, 64]" in outcome.out


def test_pipes_and_devices_are_no_files(kvlab: Kvlab) -> None:
    """They never end, or wait for a writer who never comes."""
    os.mkfifo(kvlab.folder / "pipe")
    write(kvlab.folder, dataset=of("pipe"), methods=["kivi"])
    for place in ("pipe", "/dev/zero"):
        for verb in ("validate", "inspect", "status"):
            outcome = kvlab(verb, place, timeout=60)
            assert outcome.code == 2 and "is a pipe or a device" in outcome.err, outcome.err
    assert "is a pipe or a device" in kvlab("validate", "small.yaml", timeout=60).err
