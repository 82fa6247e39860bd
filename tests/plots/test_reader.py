"""kvlab_results against the same file read by h5py alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import h5py
import kvlab_results
import numpy as np
import pytest
import results_file
from conftest import REPOSITORY
from kvplot import kinds
from kvplot.choice import Choice
from results_writer import write_results


def test_the_summary_is_the_files(swept: kvlab_results.Results) -> None:
    columns = results_file.summary(swept.path)
    assert list(swept.summary) == list(columns) and len(swept.summary) == len(columns["cell"])
    for name, values in columns.items():
        assert swept.summary[name].tolist() == values.tolist() or np.isnan(values).any()
    assert set(swept.complete["status"]) == {"complete"}
    assert len(swept.complete) == (columns["status"] == "complete").sum() < len(swept.summary)


def test_axes_and_units(swept: kvlab_results.Results, plain: kvlab_results.Results) -> None:
    assert swept.axes == ["group", "window.recent"] and plain.axes == []
    assert swept.units["attn_kl"] == "nats" and swept.units["bits_per_element"] == "bits" and "layer" not in swept.units
    assert swept.measured("wo_rel") and not plain.measured("wo_rel") and not plain.measured("nonsense")


def test_heads_are_those_behind_the_summary(swept: kvlab_results.Results) -> None:
    heads = swept.heads
    count = heads.groupby(["metric", "row"])["head"].count().groupby("metric").first()
    assert count["k_mse"] == 2 and count["out_rel"] == 4 and "wo_rel" not in count
    assert set(heads.loc[heads["metric"] == "k_mse", "of"]) == {"kv"}
    assert set(heads.loc[heads["metric"] == "attn_kl", "of"]) == {"query"}
    # One for each row: bf16's sweep points share a cell.
    mean = heads[heads["metric"] == "out_rel"].groupby("row")["value"].mean()
    expected = swept.complete.set_index("row")["out_rel"]
    assert len(mean) == len(expected) > swept.complete["cell"].nunique()
    np.testing.assert_allclose(mean[expected.index], expected, rtol=1e-12)
    assert swept.by_head("out_rel")["value"].tolist() == heads[heads["metric"] == "out_rel"]["value"].tolist()


def test_timings_are_those_behind_the_medians(timed: kvlab_results.Results, plain: kvlab_results.Results) -> None:
    times = timed.timings
    median = times[times["metric"] == "decode_us"].groupby("row")["us"].median()
    expected = timed.complete.set_index("row")["decode_us"]
    np.testing.assert_allclose(median[expected.index], expected, rtol=1e-12)
    assert {"tokens", "batch", "label", "run"} <= set(times)
    assert plain.timings.empty and {"metric", "run", "us"} <= set(plain.timings)


def test_labels_of_one_cell_have_rows_each(tmp_path: Path) -> None:
    path = write_results(tmp_path / "x.h5", {"label": ["a", "also a", "b"]}, {"out_rel": [0.5, 0.5, 0.25]},
                         {"k_se": np.ones((1, 2, 64)), "k_norm": np.ones((1, 2, 64))}, {"out_rel": np.array([0.5, 0.5])})
    with h5py.File(path, "r+") as file:
        file["summary/cell"][1] = file["summary/cell"][0]
        file["cells"][file["summary/cell"][0].decode()]["samples/decode_us"] = [1000.0, 3000.0]
    results = kvlab_results.read(path)
    assert results.by_head("out_rel")["label"].tolist() == ["a", "a", "also a", "also a", "b", "b"]
    assert results.timings["label"].tolist() == ["a", "a", "also a", "also a"]
    for kind in ("heads", "tokens"):
        titles = [panel.title for panel in kinds.ALL[kind].figure(results, Choice()).panels]
        assert titles == ["a", "also a", "b"], kind
        assert len(kinds.ALL[kind].figure(results, Choice(only=("also a",))).panels) == 1


def test_provenance_has_a_row_a_cell(swept: kvlab_results.Results) -> None:
    found = swept.provenance.set_index("cell")
    with h5py.File(swept.path) as file:
        assert sorted(found.index) == sorted(file["cells"])
        for cell, group in file["cells"].items():
            assert found.loc[cell, "seconds"] == group.attrs["seconds"] and found.loc[cell, "status"] == group.attrs["status"]
        assert set(found["cpu"]) == {file.attrs["cpu"]}


def test_a_cells_configuration_and_arrays(swept: kvlab_results.Results) -> None:
    cell = swept.complete[swept.complete["label"] == "kivi"]["cell"].iloc[0]
    with h5py.File(swept.path) as file:
        assert swept.config(cell) == json.loads(file["cells"][cell]["config"].asstr()[()]) == swept.configs()[cell]
    tokens = swept.arrays(cell, "tokens")
    assert tokens["k_se"].shape == (1, 2, 256) and tokens["position"].shape == (8,)
    # A channel's and a token's errors are sums of the same squares.
    np.testing.assert_allclose(tokens["k_se_channels"].sum(axis=(2, 3)), np.nansum(tokens["k_se"], axis=2), rtol=1e-6)
    assert swept.arrays(cell, "samples") == {}


@pytest.mark.parametrize(("content", "said"), [
    (None, "there is no such file"), (b"text", "not a readable HDF5 file"), ("other/1", "expected schema kvlab.results/1")])
def test_other_files_are_refused(tmp_path: Path, content: object, said: str) -> None:
    path = tmp_path / "x.h5"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        with h5py.File(path, "w") as file:
            file.attrs["schema"] = content
    with pytest.raises(kvlab_results.Refused, match=said):
        kvlab_results.read(path)


def test_an_unknown_cell_is_refused(plain: kvlab_results.Results) -> None:
    with pytest.raises(kvlab_results.Refused, match="there is no cell abc"):
        plain.config("abc")


def test_the_recipes_of_the_readme_run(swept: kvlab_results.Results, timed: kvlab_results.Results,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    """Each Python block as it stands, on files of this test."""
    text = (REPOSITORY / "plots/README.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(recipes) >= 5
    for recipe in recipes:
        for name in set(re.findall(r'read\("([^"]+)"\)', recipe)):
            recipe = recipe.replace(name, str(timed.path if "bench" in name else swept.path))
        exec(compile(recipe, "plots/README.md", "exec"), {})
        said = capsys.readouterr().out
        assert said.strip(), recipe
        if "label" in said.split("\n")[0] + said.split("\n")[1]:  # none pools what the file's sweep varies
            axes = timed.axes if "bench" in recipe or str(timed.path) in recipe else swept.axes
            assert all(axis in said for axis in axes), said
