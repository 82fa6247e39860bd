"""Whole models through the program: `source: model`, its measures, its tables and its mistakes."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
import tiny_model
from kvlab_program import Kvlab
from results_file import rows

HEAD = "schema: 1\ndataset: {source: model, path: model, tokens: text.h5, passages: 2}\n"
CALIBRATION = "calibration: {source: capture, path: calibration.h5}\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture
def kvlab(folder: Path) -> Kvlab:
    return Kvlab(folder)


def run(kvlab: Kvlab, name: str, text: str) -> list[dict]:
    (kvlab.folder / f"{name}.yaml").write_text(text)
    kvlab.ok("run", f"{name}.yaml", "--out", f"{name}.h5", "--no-progress")
    return rows(kvlab.folder / f"{name}.h5")


def test_perplexity(kvlab: Kvlab) -> None:
    found = run(kvlab, "ppl", HEAD + CALIBRATION + "methods: [bf16, kivi, oscar_cov, optr]\n"
                "sweep: {grid: {calibrate.steps: [2]}}\n")  # fmt: skip
    assert [row["dataset"] for row in found] == ["text passage 0"] * 4 + ["text passage 1"] * 4
    for row in found:
        assert row["status"] == "complete", row["reason"]
        assert row["layer"] == -1
        assert row["ppl"] == pytest.approx(math.exp(row["nll"]))
        assert 2 < row["bits_per_element"] <= 16
        if row["method"] == "bf16":
            # Paired with the unquantized cache in the same evaluation: with itself.
            assert row["dnll"] == row["next_kl"] == 0 and row["next_top1"] == 1 and row["bits_per_element"] == 16
        else:
            assert row["next_kl"] > 1e-3 and row["next_top1"] < 1
    with h5py.File(kvlab.folder / "ppl.h5") as file:
        cell = file["cells"][found[1]["cell"]]
        by_position = cell["tokens/dnll"][...]
        assert by_position.shape == (639,)
        assert by_position.mean() == pytest.approx(found[1]["dnll"], abs=1e-12)
        assert by_position[512:].mean() == pytest.approx(found[1]["dnll_tail"], abs=1e-12)
        rotation = file["cells"][found[2]["cell"]]["rotation/key"][...]
        assert rotation.shape == (2, 1, 64, 64)
        np.testing.assert_allclose(rotation[1, 0] @ rotation[1, 0].T, np.eye(64), atol=1e-9)
    again = kvlab.ok("run", "ppl.yaml", "--out", "ppl.h5")
    assert "8 cells complete (8 from an earlier run)" in again.out
    table = kvlab.ok("table", "ppl.h5").out
    assert "±: half of the 95% interval" in table
    line = next(line for line in table.splitlines() if line.startswith("kivi"))
    assert line.count("±") >= 3
    csv = kvlab.ok("table", "ppl.h5", "--format", "csv").out.splitlines()
    assert {"dnll", "dnll low", "dnll high"} <= set(csv[0].split(","))
    assert kvlab.ok("inspect", "ppl.h5", "--verify").out


def test_both_evaluations_agree(kvlab: Kvlab) -> None:
    text = HEAD.replace("passages: 2", "length: 200") + "methods: [kivi, oscar_ots, quarot]\n"
    once = run(kvlab, "once", text)
    for name, setting in (("steps", "evaluation: decode\n"), ("packed", "evaluation: decode\nbackend: cpu\n")):
        for a, b in zip(once, run(kvlab, name, text + setting), strict=True):
            assert b["status"] == "complete", b["reason"]
            assert a["nll"] == pytest.approx(b["nll"], abs=1e-3)
            assert a["dnll"] != 0


def test_both_evaluations_agree_on_every_method(kvlab: Kvlab) -> None:
    ids = [method["name"] for method in json.loads(kvlab.ok("list", "methods", "--json").out)]
    text = (HEAD.replace("passages: 2", "length: 400") + CALIBRATION + "sweep: {grid: {calibrate.steps: [2]}}\n"
            + f"methods: [{', '.join(ids)}]\n")  # fmt: skip
    once, steps = run(kvlab, "all_once", text), run(kvlab, "all_steps", text + "evaluation: decode\n")
    assert len(once) == len(steps) == len(ids) >= 45
    for a, b in zip(once, steps, strict=True):
        assert a["status"] == "complete", a["reason"]
        if a["method"] != "bf16":
            assert a["next_kl"] > 1e-4, a["method"]  # something was quantized
        if a["method"] == "h2o_int4":
            assert b["status"] == "unsupported" and "queries of all tokens" in b["reason"]
        else:
            assert b["status"] == "complete", b["reason"]
            assert a["nll"] == pytest.approx(b["nll"], abs=1e-3), a["method"]


@pytest.mark.parametrize("setting", ["", "prefill: exact\n", "evaluation: decode\n", "evaluation: decode\nprefill: exact\n",
                                     "evaluation: decode\nbackend: cpu\n"])  # fmt: skip
def test_dnll_is_paired_with_the_row_of_bf16(kvlab: Kvlab, setting: str) -> None:
    exact, coarse = run(kvlab, "paired", HEAD.replace("passages: 2", "length: 100") + "methods: [bf16, int2_naive]\n" + setting)
    assert exact["dnll"] == exact["next_kl"] == 0 and exact["next_top1"] == 1
    assert coarse["dnll"] == pytest.approx(coarse["nll"] - exact["nll"], abs=1e-12)


def test_a_model_in_bf16(kvlab: Kvlab) -> None:
    """Another cell with other numbers; what is written out is what a default means."""
    text = HEAD + "methods: [bf16, kivi]\n"
    names = {"plain": "length: 100", "wide": "length: 100, dtype: float32, device: cpu", "narrow": "length: 100, dtype: bf16"}
    found = {name: run(kvlab, name, text.replace("passages: 2", words)) for name, words in names.items()}
    assert [row["cell"] for row in found["wide"]] == [row["cell"] for row in found["plain"]]
    for exact, rounded in zip(found["plain"], found["narrow"], strict=True):
        assert rounded["cell"] != exact["cell"]
        assert rounded["nll"] != exact["nll"]
        assert rounded["nll"] == pytest.approx(exact["nll"], abs=0.1)
    assert found["narrow"][0]["dnll"] == 0  # paired with bf16's cache in the same model
    with h5py.File(kvlab.folder / "narrow.h5") as file:
        config = json.loads(file["cells"][found["narrow"][0]["cell"]]["config"][()])
    assert config["dataset"]["forward_dtype"] == "bf16"
    assert "the dataset of" in kvlab.refused("diff", "plain.h5", "narrow.h5").err
    item = "{source: model, path: model, tokens: text.h5, length: 64"
    two = run(kvlab, "two", f"schema: 1\ndataset: [{item}}}, {item}, dtype: fp16}}]\nmethods: [bf16]\n")
    assert [row["dataset"] for row in two] == ["text dtype=fp32", "text dtype=fp16"]
    assert two[0]["nll"] != two[1]["nll"]


def test_a_model_on_a_gpu_that_is_not_here_is_refused_before_anything_runs(kvlab: Kvlab) -> None:
    text = HEAD.replace("passages: 2", "length: 100, device: cuda") + "methods: [bf16]\n"
    (kvlab.folder / "gpu.yaml").write_text(text)
    kvlab.ok("validate", "gpu.yaml")
    outcome = kvlab("run", "gpu.yaml", "--out", "gpu.h5", "--no-progress")
    if outcome.code == 0:
        pytest.skip("a GPU is here")
    assert outcome.code == 2
    assert re.fullmatch(r"kvlab: device cuda is not available here: .{10,}\n", outcome.err)
    assert not (kvlab.folder / "gpu.h5").exists()
    capture = ("capture", "--model", "model", "--tokens", "text.h5", "--out", "gpu_capture.h5", "--device")
    assert "device cuda is not available here" in kvlab.refused(*capture, "cuda").err
    assert "--device: expected cpu or cuda, got 'gpu'" in kvlab.refused(*capture, "gpu").err
    assert not (kvlab.folder / "gpu_capture.h5").exists()


def test_numbers_that_are_not_finite_make_no_score(kvlab: Kvlab) -> None:
    def reason(name: str, matrix: str, factor: float, setting: str) -> str:
        tiny_model.scale(kvlab.folder / "model", kvlab.folder / name, matrix, factor)
        text = HEAD.replace("path: model", f"path: {name}").replace("passages: 2", "length: 40")
        (kvlab.folder / "overflow.yaml").write_text(text + "methods: [kivi]\n" + setting)
        assert kvlab("run", "overflow.yaml", "--out", f"{name}.h5", "--no-progress").code == 1
        (row,) = rows(kvlab.folder / f"{name}.h5")
        assert row["status"] == "failed" and math.isnan(row["next_top1"])
        return row["reason"]

    half = "cache_dtype: fp16\n"
    assert re.fullmatch(r"layer 0: keys reach [\d.e+]+, which cache_dtype fp16 cannot hold", reason("far", "k_proj", 1e6, half))
    assert "layer 0: values reach" in reason("vast", "v_proj", 1e6, half + "evaluation: decode\n")
    assert "not finite" in reason("endless", "o_proj", 1e38, "")


def test_longer_than_the_model_was_made_for(kvlab: Kvlab) -> None:
    shutil.copytree(kvlab.folder / "model", kvlab.folder / "short")
    config = json.loads((kvlab.folder / "model/config.json").read_text()) | {"max_position_embeddings": 300}
    (kvlab.folder / "short/config.json").write_text(json.dumps(config))
    note = "640 tokens are more than the 300 positions that the model was made for"
    text = HEAD.replace("path: model", "path: short") + "methods: [kivi]\n"
    (kvlab.folder / "long.yaml").write_text(text)
    assert kvlab.ok("validate", "long.yaml").err.count(f"text.h5: {note}") == 1
    assert kvlab.ok("run", "long.yaml", "--out", "long.h5", "--no-progress").err.count(note) == 1
    assert all(note in row["warnings"] for row in rows(kvlab.folder / "long.h5"))
    assert f"[1] {note}" in kvlab.ok("table", "long.h5").out
    captured = kvlab.ok("capture", "--model", "short", "--tokens", "text.h5", "--layers", "0", "--out", "beyond.h5")
    assert f"warning: text.h5: {note}" in captured.err
    (kvlab.folder / "long.yaml").write_text(text.replace("passages: 2", "length: 300"))
    assert kvlab.ok("validate", "long.yaml").err == ""
    # What divergence writes counts, and the half of the passage that it does not read does not.
    for length, note in ((640, "576 tokens"), (300, "406 tokens"), (90, "301 tokens"), (88, "")):
        (kvlab.folder / "long.yaml").write_text(text.replace("passages: 2", f"length: {length}") + "measure: [divergence]\n")
        told = kvlab.ok("validate", "long.yaml").err
        if note:
            note += " are more than the 300 positions that the model was made for"
            assert f"{note}: divergence writes 256 after a prompt of {length // 2}\n" in told
        else:
            assert told == ""


def test_an_exact_prefill_scores_the_second_half(kvlab: Kvlab) -> None:
    (row,) = run(kvlab, "prompt", HEAD.replace("passages: 2", "length: 600") + "prefill: exact\nmethods: [kivi]\n")
    with h5py.File(kvlab.folder / "prompt.h5") as file:
        by_position = file["cells"][row["cell"]]["tokens/dnll"][...]
    assert by_position.shape == (299,)
    assert by_position[212:].mean() == pytest.approx(row["dnll_tail"], abs=1e-12)  # 512 − 300


def test_float32_data_have_no_packed_cache(kvlab: Kvlab) -> None:
    text = HEAD.replace("passages: 2", "length: 64") + "evaluation: decode\nbackend: cpu\ncache_dtype: float32\n"
    (kvlab.folder / "wide.yaml").write_text(text + "methods: [kivi]\n")
    assert "float32 data have no kernel" in kvlab.refused("run", "wide.yaml").err


def test_needles_are_a_dataset_a_task(kvlab: Kvlab) -> None:
    text = "schema: 1\ndataset: {source: model, path: model, needles: needles.h5}\nmeasure: [needle]\n"
    found = run(kvlab, "needle", text + "methods: [bf16, kivi]\n")
    assert [row["dataset"] for row in found] == ["needles keys 000300 050%"] * 2 + ["needles single 000300 050%"] * 2
    assert kvlab.ok("inspect", "needles.h5", "--verify").out.splitlines()[-1].startswith("verified: ")
    for row in found:
        assert row["status"] == "complete", row["reason"]
        assert 0 <= row["needle_exact"] <= 1 and row["needle_nll"] > 0
        assert math.isnan(row["ppl"])
    assert found[0]["needle_nll"] != found[1]["needle_nll"]
    table = kvlab.ok("table", "needle.h5", "--rows", "label", "--cols", "dataset", "--value", "needle_nll").out
    assert "needles single 000300 050%" in table
    assert [(row["task"], row["length"], row["depth"]) for row in found[1:3]] == [("keys", 300, 0.5), ("single", 300, 0.5)]
    table = kvlab.ok("table", "needle.h5", "--rows", "label", "--cols", "task,length", "--value", "needle_exact").out
    assert "single / 300" in table and "share of the 3 trials that a value pools, with Wilson's 95% interval" in table


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_divergence(kvlab: Kvlab, backend: str) -> None:
    """From what the same backend writes without quantization: its kernels' rounding is no method's."""
    text = HEAD.replace("passages: 2", "length: 400") + "measure: [divergence]\nmethods: [bf16, int2_naive]\n"
    exact, coarse = run(kvlab, "divergence", text + f"backend: {backend}\n")
    assert exact["divergence"] == 256
    assert 0 < coarse["divergence"] < 256  # the first token follows from the prompt alone
    # At the end the cache holds the prompt and all but the last written token.
    assert exact["bits_per_element"] == 16 and 2 < coarse["bits_per_element"] < 3
    assert coarse["hist_tokens_key"] + coarse["window_tokens_key"] == 200 + 255
    both = run(kvlab, "scored", text.replace("[divergence]", "[perplexity, divergence]") + f"backend: {backend}\n")
    assert all(row["hist_tokens_key"] + row["window_tokens_key"] == 400 for row in both)


def test_mistakes(kvlab: Kvlab) -> None:
    def refused(text: str) -> str:
        (kvlab.folder / "wrong.yaml").write_text(text)
        return kvlab.refused("validate", "wrong.yaml").err

    assert "holds 2 passages of 640 tokens, but 3 of 640 were asked for" in refused(
        HEAD.replace("passages: 2", "passages: 3") + "methods: [kivi]\n")  # fmt: skip
    assert "expected 'kvlab.tokens/1'" in refused(HEAD.replace("text.h5", "needles.h5") + "methods: [kivi]\n")
    assert "measure needle needs a model with 'needles'" in refused(HEAD + "methods: [kivi]\nmeasure: [needle]\n")
    missing = refused(HEAD.replace("tokens: text.h5, passages: 2", "needles: none.h5") + "methods: [kivi]\nmeasure: [needle]\n")
    assert "none.h5" in missing and "it needs a dataset" not in missing
    with h5py.File(kvlab.folder / "few.h5", "w") as file:
        file.attrs["schema"] = "kvlab.tokens/1"
        file["tokens"] = np.zeros((2, 4), np.int32)
    with h5py.File(kvlab.folder / "empty.h5", "w") as file:
        file.attrs["schema"] = "kvlab.needles/1"
    few = HEAD.replace("text.h5, passages: 2", "few.h5, length: 2") + "methods: [kivi]\n"
    assert "few.h5: a passage of 2 tokens is too short: prefill exact needs 3" in refused(few + "prefill: exact\n")
    kvlab.ok("run", "wrong.yaml", "--set", "prefill=streaming", "--out", "few_made.h5")
    assert "empty.h5: is empty, expected a group" in refused(
        HEAD.replace("tokens: text.h5, passages: 2", "needles: empty.h5") + "methods: [kivi]\nmeasure: [needle]\n")  # fmt: skip
    hint = "must be one of bf16, fp16, float32, found 'bfloat16' (did you mean 'bf16'?)"
    assert f"'dtype' {hint}" in refused(HEAD.replace("passages: 2", "dtype: bfloat16") + "methods: [kivi]\n")
    assert f"'cache_dtype' {hint}" in refused(HEAD + "methods: [kivi]\ncache_dtype: bfloat16\n")
    capture = kvlab.refused("capture", "--model", "model", "--tokens", "text.h5", "--out", "no.h5", "--dtype", "bf16")
    assert "got 'bf16' (did you mean 'bfloat16'?)" in capture.err
    for group, told in (("single 000200 050%", "prompts of 200 tokens, found 300"), ("single 000300 150%", "a depth of 150%")):
        with h5py.File(kvlab.folder / "named.h5", "w") as file:
            file.attrs["schema"] = "kvlab.needles/1"
            file[f"{group}/prompts"] = np.zeros((2, 300), np.int32)
            file[f"{group}/answers"] = np.zeros((2, 4), np.int32)
        assert f"named.h5: the name of '/{group}' says {told}" in refused(
            HEAD.replace("tokens: text.h5, passages: 2", "needles: named.h5") + "methods: [kivi]\nmeasure: [needle]\n")  # fmt: skip
    assert "whole models have perplexity" in refused(HEAD + "methods: [kivi]\nmeasure: [error]\n")
    assert "expected a Hugging Face folder" in refused(HEAD.replace("path: model", "path: .") + "methods: [kivi]\n")


def test_a_calibration_lacks_layers(kvlab: Kvlab) -> None:
    kvlab.ok("capture", "--model", "model", "--tokens", "other.h5", "--layers", "0", "--probes", "all", "--out", "one.h5")
    (kvlab.folder / "wrong.yaml").write_text(HEAD + CALIBRATION.replace("calibration.h5", "one.h5")
                                             + "methods: [oscar_cov]\n")  # fmt: skip
    assert "has no layer 1" in kvlab.refused("run", "wrong.yaml").err


def test_wrong_model_and_token_files_are_refused_before_anything_runs(kvlab: Kvlab) -> None:
    def refused(text: str) -> str:
        (kvlab.folder / "wrong.yaml").write_text(text + "methods: [kivi]\n")
        return kvlab.refused("validate", "wrong.yaml").err

    def with_tokens(name: str, place: tuple[int, int], token: int) -> str:
        shutil.copy(kvlab.folder / "text.h5", kvlab.folder / name)
        with h5py.File(kvlab.folder / name, "r+") as file:
            file["tokens"][place] = token
        return HEAD.replace("text.h5", name)

    assert "odd.h5: token 7 of passage 1 is 60, outside the model's vocabulary of 60" in refused(with_tokens("odd.h5", (1, 7), 60))
    assert "below.h5: token 0 of passage 0 is -1, outside" in refused(with_tokens("below.h5", (0, 0), -1))
    capture = kvlab.refused("capture", "--model", "model", "--tokens", "odd.h5", "--out", "odd_capture.h5").err
    assert "odd.h5: token 7 of passage 1 is 60, outside the model's vocabulary of 60" in capture

    def with_config(name: str, **changes: object) -> str:
        folder = kvlab.folder / name
        shutil.copytree(kvlab.folder / "model", folder)
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))
        return HEAD.replace("path: model", f"path: {name}")

    assert "the weights lack 'model.layers.2." in refused(with_config("deeper", num_hidden_layers=3))
    assert "the weights hold 'model.layers.1." in refused(with_config("shallower", num_hidden_layers=1))
    assert "the weights lack 'lm_head.weight'" in refused(with_config("untied", tie_word_embeddings=False))
    assert "config.json says [61, 32]" in refused(with_config("larger", vocab_size=61))
