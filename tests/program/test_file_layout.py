"""What a reader finds in a results file: contract section 6."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from experiment_text import synthetic, write
from kvlab_program import REPOSITORY, Kvlab
from results_file import arrays, configs, rows, summary

TOKENS, KV_HEADS, Q_HEADS, PROBES = 256, 2, 4, 8

STRINGS = ("cell", "status", "reason", "method", "label", "dataset", "backend", "warnings")
INTEGERS = ("layer", "seed", "hist_tokens_key", "hist_tokens_value", "window_tokens_key", "window_tokens_value")
BY_MEASURE = {
    "error": "k_mse v_mse k_nmse v_nmse saturated nonfinite",
    "attention": "logit_mse attn_kl attn_top1 out_rel out_rel_k out_rel_v out_cos wo_rel wo_rel_k wo_rel_v",
    "tni": "tni_ratio tni_ratio_heads tni_ratio_in tni_cv tni_block_ratio tni_bound tni_block_mse",
    "memory": "bits_per_element bits_at_8k bits_at_32k bits_at_128k bits_per_element_hist bytes_codes bytes_params "
              "bytes_scales bytes_centers bytes_window bytes_padding rotation_bytes",
}
UNITS = {"attn_kl": "nats", "bits_per_element": "bits", "bits_at_128k": "bits", "bytes_codes": "bytes",
         "rotation_bytes": "bytes", "wo_rel": "", "k_mse": ""}


def test_root_attributes(small: Path) -> None:
    with h5py.File(small) as file:
        attributes = dict(file.attrs)
        assert set(file) == {"cells", "experiment", "summary"}
    assert attributes["schema"] == "kvlab.results/1"
    assert attributes["name"] == "small"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", attributes["created"])
    assert re.fullmatch(r"[0-9a-f]{16}", attributes["code_version"])
    assert attributes["argv"].split()[-2:] == ["run", "small.yaml"], "argv is the command line as it was typed"
    for name in ("code_dirty", "host", "cpu", "gpu", "libtorch_version", "hdf5_version"):
        assert attributes[name], name


def test_experiment_texts(small: Path) -> None:
    with h5py.File(small) as file:
        assert file["experiment/source"].asstr()[()] == (small.parent / "small.yaml").read_text(encoding="utf-8")
        assert "low_norm_sink" in file["experiment/resolved"].asstr()[()]


def test_resolved_experiment_holds_the_edits_and_runs_again(kvlab: Kvlab) -> None:
    """The text after --set is a valid experiment with the same cells, so a file alone is enough to repeat a run."""
    write(kvlab.folder, methods=["kivi"])
    kvlab.ok("run", "small.yaml", "--set", "probes.count=4")
    with h5py.File(kvlab.folder / "small.h5") as file:
        assert "tokens: 256" in file["experiment/resolved"].asstr()[()]
        (kvlab.folder / "again.yaml").write_text(file["experiment/resolved"].asstr()[()], encoding="utf-8")
    kvlab.ok("run", "again.yaml", "--out", "again.h5")
    assert [row["cell"] for row in rows(kvlab.folder / "again.h5")] == [
        row["cell"] for row in rows(kvlab.folder / "small.h5")]


def test_summary_columns(small: Path) -> None:
    with h5py.File(small) as file:
        table = file["summary"]
        assert {dataset.shape for dataset in table.values()} == {(4,)}
        for name in STRINGS:
            assert h5py.check_string_dtype(table[name].dtype).encoding == "utf-8", name
        for name in INTEGERS:
            assert table[name].dtype.kind == "i", name
        assert table["seed_used"].dtype.kind in "bu"
        for names in BY_MEASURE.values():
            for name in names.split():
                assert table[name].dtype == np.float64, name
                assert "unit" in table[name].attrs, name
        for name, unit in UNITS.items():
            assert table[name].attrs["unit"] == unit, name


def test_values_are_finite_where_they_are_defined(small: Path) -> None:
    """NaN stands for "not measured": a side that is not quantized has no norms entering its codec, nor history bits."""
    undefined = {"tni_ratio_in", "tni_block_ratio", "tni_bound", "tni_block_mse", "bits_per_element_hist"}
    for row in rows(small):
        for name in " ".join(BY_MEASURE.values()).split():
            if row["method"] == "bf16" and name in undefined:
                assert np.isnan(row[name]), name
            else:
                assert np.isfinite(row[name]), (row["method"], name)
        assert row["status"] == "complete" and row["reason"] == "" and row["seed_used"] == 1


def test_a_measure_that_was_not_asked_for_is_nan(kvlab: Kvlab) -> None:
    write(kvlab.folder, measure=["memory"], methods=["kivi"])
    kvlab.ok("run", "small.yaml")
    (row,) = rows(kvlab.folder / "small.h5")
    assert np.isfinite(row["bits_per_element"])
    for measure in ("error", "attention", "tni"):
        assert all(np.isnan(row[name]) for name in BY_MEASURE[measure].split())


def test_d25_d27_history_and_window_add_up_to_all_tokens(small: Path) -> None:
    """At p = T-1 = 255: kivi flushes keys at 128 and keeps 128 values; block with R = 0 keeps the own token alone."""
    table = summary(small)
    for side in ("key", "value"):
        assert (table[f"hist_tokens_{side}"] + table[f"window_tokens_{side}"] == TOKENS).all()
    history = {row["method"]: (row["hist_tokens_key"], row["hist_tokens_value"]) for row in rows(small)}
    assert history == {"bf16": (0, 0), "kivi": (128, 127), "int2_naive": (255, 255), "oscar_ots": (128, 128)}
    with h5py.File(small) as file:
        spans = {group["config"].asstr()[()].split('"id":"')[1].split('"')[0]:
                 (group.attrs["hist_key"].tolist(), group.attrs["hist_value"].tolist())
                 for group in file["cells"].values()}
    assert spans["kivi"] == ([0, 128], [0, 127])
    assert spans["bf16"] == ([0, 0], [0, 0])


def test_cell_groups(small: Path) -> None:
    per_kv = "k_mse v_mse k_nmse v_nmse tni_ratio tni_ratio_in tni_cv tni_block_ratio tni_bound tni_block_mse".split()
    per_q = "logit_mse attn_kl attn_top1 out_rel out_rel_k out_rel_v out_cos".split()
    single = "wo_rel wo_rel_k wo_rel_v tni_ratio_heads bits_per_element bytes_codes rotation_bytes".split()
    with h5py.File(small) as file:
        for group in file["cells"].values():
            assert group.attrs["status"] == "complete" and group.attrs["reason"] == ""
            assert group.attrs["seconds"] > 0 and group.attrs["started"].endswith("Z")
            shapes = {name: dataset.shape for name, dataset in group["metrics"].items()}
            assert all(dataset.dtype == np.float64 for dataset in group["metrics"].values())
            assert all(shapes[name] == (KV_HEADS,) for name in per_kv)
            assert all(shapes[name] == (Q_HEADS,) for name in per_q)
            assert all(shapes[name] == () for name in single)
            tokens = {name: dataset.shape for name, dataset in group["tokens"].items()}
            assert tokens["k_se"] == (1, KV_HEADS, TOKENS) and tokens["out_se"] == (1, Q_HEADS, PROBES)


def test_the_scalar_is_the_mean_over_heads_and_the_sum_of_counts(small: Path) -> None:
    for row, metrics in zip(rows(small), arrays(small, "metrics"), strict=True):
        for name, values in metrics.items():
            counted = name in ("saturated", "nonfinite")
            expected = np.sum(values) if counted else np.mean(values)
            np.testing.assert_allclose(row[name], expected, rtol=1e-14, err_msg=name)


def test_d97_error_by_position_is_a_curve_and_adds_up(small: Path) -> None:
    """Per-token errors are there where asked for, and they are the error that the metric averages (d = 64)."""
    for row, tokens in zip(rows(small), arrays(small, "tokens"), strict=True):
        assert tokens["k_norm"].shape == (1, KV_HEADS, TOKENS) and (tokens["k_norm"] > 0).all()
        # NaN marks tokens that are never quantized.
        np.testing.assert_allclose(np.nansum(tokens["k_se"]) / (KV_HEADS * TOKENS * 64), row["k_mse"], rtol=1e-12)
        ratio = np.sqrt(tokens["out_se"].sum(axis=-1) / tokens["out_ss"].sum(axis=-1)).mean()
        np.testing.assert_allclose(ratio, row["out_rel"], rtol=1e-12)


def test_cell_config_is_json_with_the_contracts_keys(small: Path) -> None:
    for config in configs(small).values():
        assert {"dataset", "method", "sweep", "seed", "backend", "probes", "calibration"} <= config.keys()
        assert {"source", "sha256", "layer", "dtype"} <= config["dataset"].keys()
        assert {"id", "label", "key", "value", "window"} <= config["method"].keys()
        assert config["calibration"] is None and config["backend"] == "reference"
        assert config["probes"] == {"count": 8, "placement": "strided"}
        assert re.fullmatch(r"[0-9a-f]{64}", config["dataset"]["sha256"])


def test_d47_calibration_is_named_by_content(kvlab: Kvlab) -> None:
    """The cell says which calibration set it used, whether it overlaps, and stores the rotation that was made of it."""
    write(kvlab.folder, methods=["oscar_cov_centered"], dataset=synthetic(tokens=512),
          calibration=synthetic(tokens=512, passage=1))
    kvlab.ok("run", "small.yaml")
    (config,) = configs(kvlab.folder / "small.h5").values()
    assert re.fullmatch(r"[0-9a-f]{64}", config["calibration"]["sha256"])
    assert config["calibration"]["overlaps_eval"] == "no"
    with h5py.File(kvlab.folder / "small.h5") as file:
        (cell,) = file["cells"].values()
        for side in ("key", "value"):
            rotation = cell["rotation"][side]
            assert rotation.shape == (1, 64, 64) and rotation.dtype == np.float64
            np.testing.assert_allclose(rotation[0] @ rotation[0].T, np.eye(64), atol=1e-9)
        assert cell["center/key"].shape == (KV_HEADS, 64) and cell["center/key"].dtype == np.float32
        assert "value" not in cell["center"]
    (row,) = rows(kvlab.folder / "small.h5")
    assert row["rotation_bytes"] == 2 * 4 * 64 * 64


def test_learned_rotations_record_which_heads_were_kept(kvlab: Kvlab) -> None:
    write(kvlab.folder, methods=[{"use": "optr", "set": {"calibrate.steps": 2}}],
          dataset=synthetic(tokens=512), calibration=synthetic(tokens=1024, passage=1))
    kvlab.ok("run", "small.yaml")
    with h5py.File(kvlab.folder / "small.h5") as file:
        (cell,) = file["cells"].values()
        assert cell.attrs["status"] == "complete", cell.attrs["reason"]
        assert cell["learning"], "losses and kept heads of the learned rotation are stored"
        assert all(np.isfinite(dataset[()]).all() for dataset in cell["learning"].values())


def test_readme_reads_the_file_in_pandas(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """The README's own lines, run on a small result in the place of the demo's."""
    pytest.importorskip("pandas", reason="the README reads results with pandas, which is not installed")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "pandas" in text]
    (tmp_path / "results").mkdir()
    (tmp_path / "results/demo.h5").symlink_to(small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102
    frame = names["df"]
    assert len(frame) == 4 and set(frame["method"]) == {"bf16", "kivi", "int2_naive", "oscar_ots"}
    assert frame["wo_rel"].dtype == np.float64 and frame["warnings"].map(type).eq(str).all()
    assert "int2_naive" in capsys.readouterr().out
