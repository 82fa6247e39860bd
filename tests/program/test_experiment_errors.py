"""A wrong experiment file: exit 2, one line a mistake with its place and the nearest name, nothing computed or left.

Cases D83 (unknown keys), D86 (oscar), D25 and D27 (settings that cannot be had), D47 (calibration that does not fit).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from capture_writer import random_layer, write_capture
from experiment_text import synthetic, write
from kvlab_program import Kvlab

GOOD = """\
schema: 1
name: wrong
dataset: {source: synthetic, pattern: gaussian, tokens: 256, kv_heads: 2, q_heads: 4, head_dim: 64}
methods: [kivi]
output: wrong.h5
"""

# name: (line to put in place of GOOD's with the same key, or to add; line:column of the mistake; what the message says)
MISTAKES: dict[str, tuple[str, str, str]] = {
    "d83_unknown_key": ("resid_length: 64", "6:1", r"unknown key 'resid_length'"),
    "d83_near_key": ("probe: {count: 4}", "6:1", r"did you mean 'probes'"),
    "d83_key_at_the_wrong_level": ("window.recent: 64", "6:1", r"it is a key of a method"),
    "d83_group_with_a_capital": ("Group_size: 32", "6:1", r"unknown key 'Group_size'"),
    "d83_unknown_dataset_key": ("dataset: {source: synthetic, token: 256}", "3:30", r"'token'.*did you mean 'tokens'"),
    "d83_unknown_recipe_key": (
        "methods: [{use: kivi, set: {window.resent: 64}}]", "4:29", r"window\.resent'.*window\.recent"),
    "d83_unknown_probe_key": ("probes: {number: 4}", "6:10", r"unknown key 'number' in 'probes'"),
    "key_twice": ("name: again", "6:1", r"name.*twice|twice.*name"),
    "empty_label": ("methods: [{use: kivi, label: ''}]", "4:30", r"'label' is empty"),
    "label_of_two_lines": ('methods: [{use: kivi, label: "a\\nb"}]', "4:30", r"'label' must be one line"),
    "label_with_a_control_character": ('methods: [{use: kivi, label: "a\\x1bb"}]', "4:30", r"'label' must be one line"),
    "id_of_two_lines": ('methods: [{id: "a\\nb", key: {rotate: hadamard}}]', "4:16", r"'id' must be one line"),
    "empty_label_of_a_dataset": ("dataset: {source: synthetic, label: ''}", "3:37", r"'label' is empty"),
    "label_of_a_dataset": ('dataset: {source: synthetic, label: "a\\tb"}', "3:37", r"'label' must be one line"),
    "empty_text": ("dataset: {source: synthetic, text: ''}", "3:36", r"'text' is empty"),
    "text_of_two_lines": ('dataset: {source: synthetic, text: "a\\nb"}', "3:36", r"'text' must be one line"),
    "empty_reason": ("exclude: [{when: {method: kivi}, reason: ''}]", "6:42", r"'reason' is empty"),
    "reason_of_two_lines": ('exclude: [{when: {method: kivi}, reason: "a\\nb"}]', "6:42", r"'reason' must be one line"),
    "empty_include": ("include: ''", "6:10", r"a file must be named"),
    "empty_path": ("dataset: {source: capture, path: ''}", "3:34", r"a file must be named"),
    "path_of_our_own_data": ("dataset: {source: capture, path: datasets/smollm2/passages/emma_0.h5}", "3:34",
                             r"no such file.*prepare_demo\.py --out datasets/smollm2 --passages makes it"),
    "dataset_twice": ("dataset: [{source: synthetic}, {source: synthetic}]", "3:32", r"listed twice.*another 'label'"),
    "far_from_every_key": (
        "methods: [{use: kivi, set: {qqqqqqqqqqqq: 1}}]", "4:29", r"unknown key 'qqqqqqqqqqqq' of a method$"),
    "empty_output": ("output: ''", "5:9", r"'output' must name a file"),
    "output_that_is_a_folder": ("output: a/", "5:9", r"'output' must name a file"),
    "merge_key": ("dataset: {<<: {source: synthetic}}", "3:11", r"merge keys \(<<\)"),
    "nul": ('name: "a\\0b"', "2:7", r"NUL"),
    "not_a_number": ("dataset: {source: synthetic, key_norm: .nan}", "3:40", r"'key_norm'.*found \.nan"),
    "infinite": ("dataset: {source: synthetic, key_norm: -.inf}", "3:40", r"'key_norm'.*found -\.inf"),
    "wrong_type_of_tokens": ("dataset: {source: synthetic, tokens: many}", "3:38", r"'tokens'.*whole number.*'many'"),
    "wrong_type_of_methods": ("methods: {kivi: 1}", "4:1", r"methods"),
    "wrong_type_of_seeds": ("seeds: [1.5]", "6:9", r"seeds.*whole number.*1\.5"),
    "tokens_out_of_range": ("dataset: {source: synthetic, tokens: 0}", "3:38", r"'tokens'.*0"),
    "bits_out_of_range": ("methods: [{use: kivi, set: {key.codec.bits: 99}}]", "4:45", r"bits.*99"),
    "negative_seed": ("seeds: [-1]", "6:9", r"seeds.*-1"),
    "heads_that_do_not_divide": (
        "dataset: {source: synthetic, kv_heads: 3, q_heads: 4}", "3:52", r"q_heads: 4 query heads cannot be shared by 3"),
    "sink_positions": (
        "dataset: {source: synthetic, pattern: low_norm_sink, sink_positions: first}", "3:70", r"sink_positions.*'first'"),
    "unknown_pattern": ("dataset: {source: synthetic, pattern: gausian}", "3:39", r"did you mean 'gaussian'"),
    "unknown_source": ("dataset: {source: sinthetic}", "3:19", r"did you mean 'synthetic'"),
    "unknown_method": ("methods: [kivvi]", "4:11", r"'kivvi'.*did you mean 'kivi'"),
    "d86_plain_oscar": ("methods: [oscar]", "4:11", r"oscar_cov.*oscar_ots|oscar_ots.*oscar_cov"),
    "d86_oscar_in_use": ("methods: [{use: OScaR}]", "4:17", r"oscar_cov.*oscar_ots|oscar_ots.*oscar_cov"),
    "method_twice": ("methods: [kivi, kivi]", "4:17", r"listed twice"),
    "no_methods": ("methods: []", "4:10", r"methods.*empty"),
    "unknown_measure": ("measure: [atention]", "6:11", r"did you mean 'attention'"),
    "kernel_time": ("measure: [kernel_time]", "6:11", r"kernel_time.*reference"),
    "perplexity": ("measure: [perplexity]", "6:11", r"perplexity.*source: model"),
    "whole_model": ("dataset: {source: model, path: .}", "3:10", r"model needs 'tokens', a kvlab"),
    "unknown_backend": ("backend: gpu", "6:10", r"'gpu'"),
    "schema_of_the_future": ("schema: 2", "1:9", r"schema 2.*schema 1"),
    "missing_capture": ("dataset: {source: capture, path: nowhere.h5}", "3:34", r"'nowhere.h5'.*no such file"),
    "missing_include": ("include: nowhere.yaml", "6:10", r"'nowhere.yaml'.*no such file"),
    "missing_rotation_file": (
        "methods: [{use: kivi, set: {key.rotate: 'file:nowhere.h5'}}]", "4:", r"'nowhere.h5'.*no such file"),
    "unknown_sweep_axis": ("sweep: {grid: {window.recnt: [0]}}", "6:16", r"window\.recnt.*window\.recent"),
    "sweep_axis_without_values": ("sweep: {grid: {group: []}}", "6:23", r"'group'.*empty"),
    "zip_of_unequal_lists": (
        "sweep: {zip: {group: [32, 64], window.recent: [0]}}", "6:14", r"equally long"),
    "exclude_without_a_reason": ("exclude: [{when: {method: kivi}}]", "6:11", r"reason"),
    "exclude_of_nothing_listed": (
        "exclude: [{when: {method: kivvi}, reason: x}]", "6:27", r"kivvi.*kivi"),
    "syntax": ("probes: {count: 4", "", r"."),
    "tab": ("\tprobes: 4", "6:", r"."),
}


def put(text: str, line: str) -> str:
    """The text with the line in place of the one with its key, unless it is meant to be there twice."""
    key = line.split(":")[0]
    lines = text.splitlines()
    at = [number for number, old in enumerate(lines) if old.split(":")[0] == key]
    if at and line != "name: again":
        lines[at[0]] = line
    else:
        lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_place(name: str, kvlab: Kvlab) -> None:
    line, place, message = MISTAKES[name]
    (kvlab.folder / "wrong.yaml").write_text(put(GOOD, line), encoding="utf-8")
    outcome = kvlab.refused("run", "wrong.yaml")
    assert any(text.startswith(f"wrong.yaml:{place}") and re.search(message, text) for text in outcome.mistakes), (
        f"expected wrong.yaml:{place} and /{message}/, found\n{outcome.err}")
    if name not in ("syntax", "merge_key"):
        assert len(outcome.mistakes) == 1, outcome.err


def test_d83_validate_shows_all_mistakes_at_once(kvlab: Kvlab) -> None:
    (kvlab.folder / "wrong.yaml").write_text(
        "schema: 1\n"
        "dataset: {source: synthetic, patern: gaussian, tokens: -5}\n"
        "methods: [kivvi, {use: kivi, set: {window.recent: many}}]\n"
        "resid_length: 64\n"
        "seeds: nine\n", encoding="utf-8")
    outcome = kvlab.refused("validate", "wrong.yaml")
    places = [re.match(r"wrong\.yaml:(\d+):\d+: ", text) for text in outcome.mistakes]
    assert all(places), outcome.err
    assert [place[1] for place in places if place] == ["2", "2", "3", "3", "4", "5"]


def test_a_mistake_in_an_included_file_is_placed_there(kvlab: Kvlab) -> None:
    (kvlab.folder / "base.yaml").write_text(GOOD + "resid_length: 1\n", encoding="utf-8")
    (kvlab.folder / "top.yaml").write_text("include: base.yaml\nmethods: [kivvi]\n", encoding="utf-8")
    outcome = kvlab.refused("run", "top.yaml")
    assert any("base.yaml:6:1: unknown key 'resid_length'" in text for text in outcome.mistakes)
    assert any(text.startswith("top.yaml:2:11: ") for text in outcome.mistakes)


def test_set_includes_nothing(kvlab: Kvlab) -> None:
    """It would be recorded in the results and not be true."""
    (kvlab.folder / "good.yaml").write_text(GOOD, encoding="utf-8")
    (kvlab.folder / "more.yaml").write_text("seeds: [1]\n", encoding="utf-8")
    outcome = kvlab.refused("validate", "good.yaml", "--set", "include=more.yaml")
    assert outcome.mistakes == ["--set include: files are included by the experiment file alone: write a file that "
                                "includes both, later keys win"]


def test_an_include_of_itself_ends(kvlab: Kvlab) -> None:
    (kvlab.folder / "a.yaml").write_text("include: b.yaml\n", encoding="utf-8")
    (kvlab.folder / "b.yaml").write_text("include: a.yaml\n", encoding="utf-8")
    assert "includes itself" in kvlab.refused("run", "a.yaml").err


# What planning finds: it knows the data, not the line.
def calibrated(folder: Path, **changes: object) -> Path:
    return write(folder, "wrong.yaml", methods=["oscar_cov"], **changes)


def test_missing_calibration(kvlab: Kvlab) -> None:
    calibrated(kvlab.folder)
    assert re.search(r"wrong\.yaml:4:11: .*'oscar_cov' needs a calibration set", kvlab.refused("run", "wrong.yaml").err)


def test_d47_calibration_of_another_shape(kvlab: Kvlab) -> None:
    calibrated(kvlab.folder, calibration=synthetic(head_dim=128))
    assert re.search(r"head dimension 128.*64", kvlab.refused("run", "wrong.yaml").err)


def test_calibration_with_fewer_rows_than_the_head_dimension(kvlab: Kvlab) -> None:
    """tokens 16 x 2 query heads a KV head = 32 rows, d = 64."""
    calibrated(kvlab.folder, calibration=synthetic(tokens=16, passage=1))
    assert re.search(r"32 query rows.*head dimension 64", kvlab.refused("run", "wrong.yaml").err)


def test_a_rotation_file_that_is_none(kvlab: Kvlab) -> None:
    """Before anything runs, with its place, not as failed cells."""
    write_capture(kvlab.folder / "kv.h5", {0: random_layer(0)})
    for file, message in (("kv.h5", r"schema kvlab\.rotation/1, found 'kvlab\.capture/1'"), ("wrong.yaml", r"not an HDF5 file")):
        write(kvlab.folder, "wrong.yaml", methods=[{"use": "kivi", "set": {"key.rotate": f"file:{file}"}}])
        assert re.search(rf"^kvlab: wrong\.yaml:4:11: .*{message}", kvlab.refused("run", "wrong.yaml").err)


def test_unknown_layer(kvlab: Kvlab) -> None:
    write_capture(kvlab.folder / "kv.h5", {3: random_layer(0), 5: random_layer(1)})
    write(kvlab.folder, "wrong.yaml", dataset={"source": "capture", "path": "kv.h5", "layers": [4]})
    assert re.search(r"wrong\.yaml:3:\d\d: .*kv\.h5 has no layer 4 \(available: 3, 5\)", kvlab.refused("run", "wrong.yaml").err)


def test_d25_nothing_left_to_run(kvlab: Kvlab) -> None:
    """R = 48 is no multiple of G = 32 under `full`: with no other point that is an error, told with the reason."""
    write(kvlab.folder, "wrong.yaml", methods=[{"use": "kcvt_base", "set": {"window.recent": 48}}])
    outcome = kvlab.refused("run", "wrong.yaml")
    assert "nothing is left to run" in outcome.err
    assert "window.recent 48 is no multiple of the group of 32 tokens" in outcome.err


def test_d15_an_axis_without_effect_is_refused(kvlab: Kvlab) -> None:
    write(kvlab.folder, "wrong.yaml", methods=["bf16"], sweep={"grid": {"key.codec.clip": ["none", 0.9]}})
    assert re.search(r"wrong\.yaml:7:18: .*axis 'key\.codec\.clip' changes nothing for any method listed \(bf16\)",
                     kvlab.refused("run", "wrong.yaml").err)


# Captures.
def faulty(name: str, folder: Path) -> str:
    """Writes kv.h5 with the named fault; the words that the message must hold."""
    path = folder / "kv.h5"
    layer = random_layer(0)
    match name:
        case "schema":
            write_capture(path, {0: layer}, schema="kvlab.capture/9")
            return r"kvlab\.capture/9"
        case "no_schema":
            write_capture(path, {0: layer}, schema=None)
            return r"schema"
        case "heads":
            write_capture(path, {0: layer | {"q": layer["q"][:, :3]}})
            return r"heads|query"
        case "rank":
            write_capture(path, {0: layer | {"v": layer["v"][0]}})
            return r"layer_000/v"
        case "lacks_v":
            write_capture(path, {0: {"q": layer["q"], "k": layer["k"]}})
            return r"layer_000/v"
        case "positions":
            write_capture(path, {0: layer}, positions=np.arange(256) + 1)
            return r"positions"
        case "truncated":
            write_capture(path, {0: layer})
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            return r"truncated"
        case "text":
            path.write_text("no HDF5", encoding="utf-8")
            return r"HDF5"
        case "empty":
            path.write_bytes(b"")
            return r"HDF5|empty"
        case "folder":
            path.mkdir()
            return r"folder|directory"
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["schema", "no_schema", "heads", "rank", "lacks_v", "positions", "truncated", "text",
                                  "empty", "folder"])
def test_a_faulty_capture_is_refused_before_anything_runs(name: str, kvlab: Kvlab) -> None:
    message = faulty(name, kvlab.folder)
    write(kvlab.folder, "wrong.yaml", dataset={"source": "capture", "path": "kv.h5"})
    outcome = kvlab.refused("run", "wrong.yaml")
    assert "kv.h5" in outcome.err and re.search(message, outcome.err), outcome.err
    assert len(outcome.mistakes) == 1, outcome.err


# The experiment file itself.
def test_a_file_that_is_not_utf8(kvlab: Kvlab) -> None:
    """Latin-1, as old editors save it: told with its place; results could never be read again."""
    (kvlab.folder / "wrong.yaml").write_bytes(GOOD.encode().replace(b"wrong\n", "Übercaf".encode() + b"\xe9\n"))
    assert re.search(r"wrong\.yaml:2:14: is not UTF-8: byte 0xE9", kvlab.refused("run", "wrong.yaml").err)
    write(kvlab.folder)
    assert "--set name: is not UTF-8" in kvlab.refused("run", "small.yaml", "--set", os.fsdecode(b"name=caf\xe9")).err


def test_a_line_that_begins_with_a_tab(kvlab: Kvlab) -> None:
    (kvlab.folder / "wrong.yaml").write_text("schema: 1\nmethods:\n\t- kivi\n", encoding="utf-8")
    assert re.search(r"wrong\.yaml:3:.*indented with a tab", kvlab.refused("run", "wrong.yaml").err)


def test_a_folder_whose_name_is_not_utf8(kvlab: Kvlab) -> None:
    """File names are bytes; the results, the status and the JSON are text all the same."""
    folder = Path(os.fsdecode(os.fsencode(kvlab.folder) + b"/caf\xe9"))
    folder.mkdir()
    write_capture(folder / "kv.h5", {0: random_layer(0)})
    write(folder, dataset={"source": "capture", "path": "kv.h5"}, methods=["kivi"])
    inside = Kvlab(folder)
    assert json.loads(inside.ok("run", "small.yaml", "--json").out)["complete"] == 1
    path = str(folder / "small.h5")
    for verb in ("status", "inspect", "claims"):
        json.loads(kvlab.ok(verb, path, "--json").out)


@pytest.mark.parametrize("verb", ["run", "validate"])
def test_a_file_that_is_none(verb: str, kvlab: Kvlab) -> None:
    assert re.search(r"nowhere\.yaml.*no such file", kvlab.refused(verb, "nowhere.yaml").err, re.IGNORECASE)
    (kvlab.folder / "folder.yaml").mkdir()
    assert re.search(r"folder\.yaml.*is a folder, not a file", kvlab.refused(verb, "folder.yaml").err)


def test_an_empty_file(kvlab: Kvlab) -> None:
    (kvlab.folder / "empty.yaml").write_text("", encoding="utf-8")
    assert "empty.yaml" in kvlab.refused("run", "empty.yaml").err


@pytest.mark.parametrize("text", ["just words\n", "- 1\n- 2\n", "42\n", "null\n", "--- {a: 1}\n--- {b: 2}\n"])
def test_a_file_that_is_no_map(text: str, kvlab: Kvlab) -> None:
    (kvlab.folder / "wrong.yaml").write_text(text, encoding="utf-8")
    assert "wrong.yaml:" in kvlab.refused("run", "wrong.yaml").err


@pytest.mark.parametrize("head", [b"", GOOD.encode()])
def test_a_binary_file(head: bytes, kvlab: Kvlab) -> None:
    """Bytes of all values, on their own and behind a good experiment."""
    noise = np.random.default_rng(0).integers(0, 256, 20_000, dtype=np.uint8).tobytes()
    (kvlab.folder / "wrong.yaml").write_bytes(head + noise)
    outcome = kvlab.refused("run", "wrong.yaml")
    assert len(outcome.err) < 2000


@pytest.mark.parametrize("text", [
    pytest.param("[" * 20_000, id="deep_lists"),
    pytest.param("a: " + "{b: " * 20_000, id="deep_maps"),
    pytest.param("a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(12)), id="billion_laughs"),
    pytest.param("".join(f"key{i}: {i}\n" for i in range(20_000)), id="many_unknown_keys"),
    pytest.param("name: " + "x" * 2_000_000 + "\n", id="long_line"),
])
def test_huge_nonsense(text: str, kvlab: Kvlab) -> None:
    """Neither a crash nor minutes of work nor a flood of text."""
    (kvlab.folder / "wrong.yaml").write_text(text, encoding="utf-8")
    outcome = kvlab("run", "wrong.yaml", timeout=60)
    assert outcome.code == 2, outcome.err[:2000]
    assert "wrong.yaml" in outcome.err
    assert len(outcome.err) < 5_000_000
    assert not (kvlab.folder / "small.h5").exists()
