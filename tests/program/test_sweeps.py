"""From an experiment file to cells and rows: contract section 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from capture_writer import random_layer, write_capture
from experiment_text import experiment, synthetic, write
from kvlab_program import Kvlab
from results_file import rows, states


def test_a_table_names_all_shapes_of_swept_data(kvlab: Kvlab) -> None:
    write(kvlab.folder, methods=["kivi"], sweep={"grid": {"tokens": [128, 256], "pattern": ["gaussian", "constant"]}})
    kvlab.ok("run", "small.yaml")
    assert "data: synthetic (head_dim 64, 2 KV heads, 4 query heads, 128/256 tokens, bf16, 1 layer)" in kvlab.ok(
        "table", "small.h5").out


def planned(kvlab: Kvlab, **changes: Any) -> dict[str, Any]:
    """Cells and number of rows without running anything."""
    write(kvlab.folder, **changes)
    return json.loads(kvlab.ok("run", "small.yaml", "--dry-run", "--json").out)


def ran(kvlab: Kvlab, **changes: Any) -> list[dict[str, Any]]:
    write(kvlab.folder, **changes)
    kvlab.ok("run", "small.yaml")
    return rows(kvlab.folder / "small.h5")


def test_coinciding_points_share_a_cell_and_keep_their_rows(kvlab: Kvlab) -> None:
    """bf16 has neither group nor window: 6 rows, one cell, one value."""
    table = ran(kvlab, methods=["bf16", "kivi"], measure=["memory"],
                sweep={"grid": {"group": [32, 64], "window.recent": [0, 64, 128]}})
    assert len(table) == 12 and len({row["cell"] for row in table}) == 7
    plain = [row for row in table if row["method"] == "bf16"]
    assert len({row["cell"] for row in plain}) == 1
    assert [(row["group"], row["window.recent"]) for row in plain] == [(g, r) for g in (32, 64) for r in (0, 64, 128)]
    assert {row["bits_per_element"] for row in plain} == {16.0}
    assert len(states(kvlab.folder / "small.h5")) == 7


def test_group_beyond_the_head_is_the_head(kvlab: Kvlab) -> None:
    """D27: a per-token group of 128 at d = 64 becomes 64: same cell, and the row that asked for 128 says so.

    Per-channel groups are counted in tokens and never change.
    """
    table = ran(kvlab, methods=["int2_naive", "kivi"], measure=["memory"], sweep={"grid": {"group": [64, 128]}})
    naive = {row["group"]: row for row in table if row["method"] == "int2_naive"}
    assert naive[64]["cell"] == naive[128]["cell"]
    assert "the per-token group 128 became the head dimension 64" in naive[128]["warnings"]
    assert "became" not in naive[64]["warnings"]
    kivi = {row["group"]: row for row in table if row["method"] == "kivi"}
    assert kivi[64]["cell"] != kivi[128]["cell"]
    assert "value: the per-token group 128" in kivi[128]["warnings"] and "key:" not in kivi[128]["warnings"]


def test_two_names_of_one_configuration_share_a_cell_with_a_warning(kvlab: Kvlab) -> None:
    """kivi with G = 128 is kivi_g128 (contract section 3)."""
    table = ran(kvlab, methods=[{"use": "kivi", "label": "kivi, G 128", "set": {"group": 128}}, "kivi_g128", "kivi"])
    assert [row["method"] for row in table] == ["kivi", "kivi_g128", "kivi"]
    assert table[0]["cell"] == table[1]["cell"] != table[2]["cell"]
    assert "same configuration as kivi_g128" in table[0]["warnings"]
    assert "same configuration as 'kivi, G 128'" in table[1]["warnings"]
    assert "same configuration" not in table[2]["warnings"]
    assert table[0]["wo_rel"] == table[1]["wo_rel"] != table[2]["wo_rel"]


def test_d15_no_effect_by_algebra_is_said_in_the_row(kvlab: Kvlab) -> None:
    """Bit reversal permutes the columns of R: at G = d each group holds the same elements, at G = 32 it does not."""
    table = ran(kvlab, methods=["oscar_cov"], dataset=synthetic(tokens=512), measure=["error", "memory"],
                calibration=synthetic(tokens=512, passage=1),
                sweep={"grid": {"key.bit_reversal": [True, False], "group": [32, 64]}})
    by_point = {(row["key.bit_reversal"], row["group"]): row for row in table}
    for reversal in ("true", "false"):
        assert "no effect by algebra" in by_point[reversal, 64]["warnings"]
        assert "key.bit_reversal" not in by_point[reversal, 32]["warnings"]
    assert by_point["true", 64]["k_mse"] == np.float64(by_point["false", 64]["k_mse"])
    assert by_point["true", 32]["k_mse"] != by_point["false", 32]["k_mse"]


def test_d15_the_covariance_form_of_keys_is_said_to_have_no_effect(kvlab: Kvlab) -> None:
    """Keys use the query covariance in both forms; values do not."""
    table = ran(kvlab, methods=["oscar_cov"], dataset=synthetic(tokens=512), measure=["error"],
                calibration=synthetic(tokens=512, passage=1),
                sweep={"grid": {"key.covariance": ["code", "paper"], "value.covariance": ["code", "paper"]}})
    by_point = {(row["key.covariance"], row["value.covariance"]): row for row in table}
    assert all("key.covariance: no effect by algebra" in row["warnings"] for row in table)
    assert not any("value.covariance" in row["warnings"] for row in table)
    for value in ("code", "paper"):
        assert by_point["code", value]["k_mse"] == by_point["paper", value]["k_mse"]
    assert by_point["code", "code"]["v_mse"] != by_point["code", "paper"]["v_mse"]


def test_a_swept_shape_that_cannot_be_drawn_is_unsupported(kvlab: Kvlab) -> None:
    table = ran(kvlab, methods=["kivi"], sweep={"grid": {"q_heads": [4, 5]}})
    assert [row["status"] for row in table] == ["complete", "unsupported"]
    assert "5 query heads cannot be shared by 2" in table[1]["reason"]


def test_d15_switches_change_the_numbers(kvlab: Kvlab) -> None:
    """Each ablation switch on data where it must matter (sinks, outlier channels, a mean): never byte for byte equal."""
    base = {"use": "kcvt_base", "label": "base"}
    edits: dict[str, dict[str, Any]] = {
        "rotate": {"key.rotate": "hadamard"},
        "scale": {"key.token_scale": "l2_heads"},
        "scale per head": {"key.token_scale": "l2_head"},
        "grid": {"key.codec.grid": "float_zero"},
        "clip": {"key.codec.clip": 0.9},
        "clip kind": {"key.codec.clip": 0.9, "key.codec.clip_kind": "range"},
        "parameters": {"key.codec.params": "bf16"},
        "axis": {"key.codec.axis": "token"},
        "bits": {"key.codec.bits": 3},
        "centre": {"key.center": "head_mean"},
        "order": {"key.token_scale": "max_head", "key.rotate": "hadamard", "key.order": "scale_rotate"},
        "not order": {"key.token_scale": "max_head", "key.rotate": "hadamard"},
    }
    table = ran(kvlab, dataset=synthetic(tokens=512, pattern="mean_dominated"), measure=["error"],
                calibration=synthetic(tokens=512, pattern="mean_dominated", passage=1),
                methods=[base, *({**base, "label": label, "set": edit} for label, edit in edits.items())])
    errors = {row["label"]: row["k_mse"] for row in table}
    assert all(row["status"] == "complete" for row in table)
    alike = [label for label, error in errors.items() if list(errors.values()).count(error) > 1]
    assert not alike, "these have no effect on each other"


def test_d15_rounding_matters_at_ties(kvlab: Kvlab) -> None:
    """Whole numbers 0..6 with s = 2: half of them are ties, which the rules round to different codes."""
    layer = random_layer(0)
    layer["k"] = np.random.default_rng(1).integers(0, 7, layer["k"].shape).astype(np.float32)
    write_capture(kvlab.folder / "kv.h5", {0: layer})
    table = ran(kvlab, dataset={"source": "capture", "path": "kv.h5"}, methods=["kivi"],
                sweep={"grid": {"key.codec.rounding": ["half_even", "half_up"]}})
    assert table[0]["attn_kl"] != table[1]["attn_kl"]


def test_excluded_points_are_rows_with_their_reason(kvlab: Kvlab) -> None:
    table = ran(kvlab, methods=["kivi", "kcvt_base"], measure=["memory"], sweep={"grid": {"group": [32, 64]}},
                exclude=[{"when": {"method": "kivi", "group": 64}, "reason": "not in the published grid"}])
    states_of = {(row["method"], row["group"]): (row["status"], row["reason"]) for row in table}
    assert states_of["kivi", 64] == ("excluded", "not in the published grid")
    assert [state for state, _ in states_of.values()].count("complete") == 3
    assert "not in the published grid" in kvlab.ok("table", "small.h5", "--rows", "label", "--cols", "group",
                                                   "--value", "bits_per_element").out


def test_d25_unsupported_points_are_rows_with_their_reason(kvlab: Kvlab) -> None:
    """R no multiple of G under `full`; a group that does not divide d; a method with no point left is a row too."""
    table = ran(kvlab, methods=["kcvt_base", "int2_naive", "bf16"], measure=["memory"],
                sweep={"grid": {"group": [32, 48], "window.recent": [96, 100]}})
    found = {(row["method"], row["group"], row["window.recent"]): row for row in table}
    assert len(table) == 12
    for (method, group, recent), row in found.items():
        bad = (method == "kcvt_base" and (group == 48 or recent == 100)) or (method == "int2_naive" and group == 48)
        assert row["status"] == ("unsupported" if bad else "complete"), (method, group, recent)
        assert bool(row["reason"]) == bad
        assert np.isnan(row["bits_per_element"]) == bad
    assert "no multiple of the group" in found["kcvt_base", 32, 100]["reason"]
    assert "48" in found["int2_naive", 48, 96]["reason"] and "64" in found["int2_naive", 48, 96]["reason"]


def test_d20_group_beyond_all_tokens_quantizes_nothing(kvlab: Kvlab) -> None:
    """D23, D25: G or R above T is no failure: no complete group, so everything is read in full precision."""
    table = ran(kvlab, dataset=synthetic(tokens=100), methods=["kivi"], probes={"placement": "all"},
                sweep={"zip": {"group": [32, 256], "window.recent": [512, 256]}})
    for row in table:
        assert row["status"] == "complete" and row["hist_tokens_key"] == row["hist_tokens_value"] == 0
        assert row["window_tokens_key"] == 100 and row["bits_per_element"] == 16 and row["wo_rel"] == 0
    assert np.isfinite(table[0]["k_mse"]) and np.isnan(table[1]["k_mse"])


def test_seeds_count_only_where_they_are_used(kvlab: Kvlab) -> None:
    """A constant sample with a fixed recipe has one row; a random rotation or random data has one a seed."""
    table = ran(kvlab, dataset=synthetic(pattern="constant"), seeds=[0, 1, 2], measure=["error"],
                methods=["kivi", {"use": "kivi", "label": "random", "set": {"key.rotate": "random_orthogonal"}}])
    assert [(row["label"], row["seed"], row["seed_used"]) for row in table] == [
        ("kivi", 0, 0), ("random", 0, 1), ("random", 1, 1), ("random", 2, 1)]
    assert len({row["cell"] for row in table}) == 4
    plan = planned(kvlab, seeds=[0, 1, 2], methods=["kivi"])
    assert len(plan["cells"]) == plan["rows"] == 3


def test_zip_walks_in_step_and_grid_crosses_it(kvlab: Kvlab) -> None:
    table = ran(kvlab, methods=["kivi"], measure=["memory"],
                sweep={"zip": {"group": [32, 64], "window.recent": [128, 64]}, "grid": {"window.sink": [0, 4]}})
    assert [(row["window.sink"], row["group"], row["window.recent"]) for row in table] == [
        (0, 32, 128), (0, 64, 64), (4, 32, 128), (4, 64, 64)]


def test_dataset_axis(kvlab: Kvlab) -> None:
    """D97: error against T is one sweep. A longer sample begins with the shorter one."""
    table = ran(kvlab, methods=["kivi"], sweep={"grid": {"tokens": [160, 256, 512]}})
    assert [row["tokens"] for row in table] == [160, 256, 512]
    assert [row["hist_tokens_key"] + row["window_tokens_key"] for row in table] == [160, 256, 512]
    assert all(np.isfinite(row["wo_rel"]) for row in table)


def test_d96_all_kinds_of_error_stand_together(kvlab: Kvlab) -> None:
    """The default measures are all of them, so that no metric is reported alone; the default table shows several."""
    (row,) = ran(kvlab, methods=["kivi"])
    for name in ("k_mse", "logit_mse", "attn_kl", "out_rel", "attn_top1", "wo_rel", "bits_per_element"):
        assert np.isfinite(row[name]), name
    heading = kvlab.ok("table", "small.h5").out.splitlines()[0].split()
    assert {"wo_rel", "attn_kl", "out_rel", "k_nmse", "bits_per_element"} <= set(heading)


def test_d98_sinks_that_are_destroyed_show_in_kl_and_top1(kvlab: Kvlab) -> None:
    """Sink keys of low norm in a per-channel group vanish: a small k_nmse, yet the strongest key changes often."""
    table = ran(kvlab, dataset=synthetic(tokens=512), measure=["error", "attention"],
                methods=["bf16", "kcvt_base", "token_scale"])
    base = {row["method"]: row for row in table}["kcvt_base"]
    assert {row["method"]: row for row in table}["bf16"]["attn_top1"] == 1
    assert base["attn_kl"] > 0.05 and base["attn_top1"] < 0.95


def test_include_takes_later_keys(kvlab: Kvlab) -> None:
    """Paths in an included file may be relative to the including one; --set has the last word."""
    (kvlab.folder / "parts").mkdir()
    (kvlab.folder / "parts/base.yaml").write_text(experiment(methods=["bf16"], seeds=[3]), encoding="utf-8")
    (kvlab.folder / "top.yaml").write_text(
        "include: parts/base.yaml\nmethods: [kivi]\nname: top\n", encoding="utf-8")
    plan = json.loads(kvlab.ok("run", "top.yaml", "--dry-run", "--json").out)
    (cell,) = plan["cells"]
    assert cell["config"]["method"]["id"] == "kivi" and cell["config"]["seed"] == 3
    plan = json.loads(kvlab.ok("run", "top.yaml", "--dry-run", "--json", "--set", "seeds=[4, 5]").out)
    assert [cell["config"]["seed"] for cell in plan["cells"]] == [4, 5]


def test_set_reaches_every_level(kvlab: Kvlab) -> None:
    """VALUE is YAML; keys are dotted; list items by index; recipe keys stay dotted in `set` and `grid`."""
    plan = planned(kvlab, methods=[{"use": "kivi", "label": "edited"}])
    outcome = kvlab.ok("run", "small.yaml", "--dry-run", "--json", "--set", "methods.0.set.window.recent=64",
                       "--set", "sweep.grid.key.codec.bits=[2, 4]", "--set", "dataset.tokens=300",
                       "--set", "probes={placement: last, count: 3}")
    edited = json.loads(outcome.out)
    assert len(plan["cells"]) == 1 and len(edited["cells"]) == 2
    config = edited["cells"][1]["config"]
    assert config["method"]["window"]["recent"] == 64 and config["method"]["key"]["codec"]["bits"] == 4
    assert config["dataset"]["tokens"] == 300 and config["probes"] == {"placement": "last", "count": 3}


def test_d27_requested_and_effective_are_both_stored(kvlab: Kvlab) -> None:
    plan = planned(kvlab, methods=["int2_naive"])
    method = plan["cells"][0]["config"]["method"]
    assert method["key"]["codec"]["group"] == 64
    assert 128 in method["requested"].values(), method["requested"]


def test_layer_rules_replace_the_recipe_on_their_layers(kvlab: Kvlab, tmp_path: Path) -> None:
    write_capture(tmp_path / "kv.h5", {number: random_layer(number) for number in range(3)})
    table = ran(kvlab, dataset={"source": "capture", "path": "kv.h5"}, measure=["memory"], methods=[
        {"id": "mixed", "key": {"codec": {"kind": "uniform", "bits": 2, "axis": "channel", "group": 32}},
         "value": {"codec": {"axis": "token"}}, "window": {"recent": 32}, "layers": {"0-1": {"use": "bf16"}}}])
    bits = {row["layer"]: row["bits_per_element"] for row in table}
    assert bits[0] == bits[1] == 32 and bits[2] < 16


def test_first_tokens_of_a_capture_are_a_shorter_capture(kvlab: Kvlab) -> None:
    """No token reads what lies behind it, so `tokens:` gives what a capture of so many tokens gives."""
    whole = random_layer(1)
    write_capture(kvlab.folder / "whole.h5", {0: whole})
    write_capture(kvlab.folder / "short.h5", {0: {name: array[:, :, :128] for name, array in whole.items()}})
    item = {"source": "capture", "path": "whole.h5"}
    table = ran(kvlab, dataset=[item, item | {"path": "short.h5"}], methods=["kivi"], sweep={"grid": {"tokens": [128]}})
    assert table[0]["dataset"] == "whole" and table[0]["cell"] != table[1]["cell"]
    assert table[0]["hist_tokens_key"] + table[0]["window_tokens_key"] == 128
    for metric in ("k_nmse", "attn_kl", "out_rel", "bits_per_element"):
        assert table[0][metric] == table[1][metric], metric
    wrong = kvlab.refused("run", "small.yaml", "--set", "sweep.grid.tokens=[512]")
    assert "holds 256 tokens, but those from 0 to 511 were asked for" in wrong.err


def test_calibration_by_a_stretch_of_a_capture(kvlab: Kvlab) -> None:
    """The mean of calibration keys is that of the stretch, whether written in the item or swept."""
    calibration = random_layer(2)
    write_capture(kvlab.folder / "calibration.h5", {0: calibration}, token_ids=np.arange(1000, 1256))
    item = {"source": "capture", "path": "calibration.h5"}
    sweep = {"zip": {"calibration.from": [0, 64], "calibration.tokens": [256, 128]}}
    write_capture(kvlab.folder / "data.h5", {0: random_layer(3)})
    table = ran(kvlab, dataset={"source": "capture", "path": "data.h5"}, calibration=item, sweep=sweep,
                methods=["quarot_windows_centered"], measure=["error"])
    with h5py.File(kvlab.folder / "small.h5") as file:
        centers = [file["cells"][row["cell"]]["center/key"][...] for row in table]
        assert json.loads(file["cells"][table[1]["cell"]]["config"][()])["calibration"]["tokens"] == 128
    np.testing.assert_allclose(centers[0], calibration["k"][0].mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(centers[1], calibration["k"][0][:, 64:192].mean(axis=1), atol=1e-6)
    write(kvlab.folder, dataset={"source": "capture", "path": "data.h5"}, calibration=item | {"from": 64, "tokens": 128},
          methods=["quarot_windows_centered"], measure=["error"], output="again.h5")  # fmt: skip
    kvlab.ok("run", "small.yaml")
    assert rows(kvlab.folder / "again.h5")[0]["cell"] == table[1]["cell"]


def test_texts_are_told_apart(kvlab: Kvlab) -> None:
    table = ran(kvlab, dataset=[synthetic(passage=0) | {"text": "prose"}, synthetic(passage=1) | {"text": "code"}], methods=["kivi"])
    assert [row["text"] for row in table] == ["prose", "code"]
    shown = kvlab.ok("table", "small.h5", "--rows", "text,label", "--value", "wo_rel,attn_kl").out
    assert shown.splitlines()[2].split()[:2] == ["prose", "kivi"]
