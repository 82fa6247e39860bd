"""The papers' numbers as data: each file is read by the program, its sums and means add up or say that they do not, and it
fits the experiment that it stands beside."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import yaml
from capture_writer import random_layer, write_capture
from experiment_text import synthetic, write
from kvlab_program import REPOSITORY, Kvlab
from results_file import rows

PAPERS = REPOSITORY / "experiments/papers"
PUBLISHED = sorted(PAPERS.rglob("*.published.yaml"))
EXPERIMENTS = sorted(path for path in PAPERS.rglob("*.yaml") if path not in PUBLISHED)


def name_of(path: Path) -> str:
    return path.relative_to(PAPERS).as_posix()


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def certainty(table: dict[str, Any], row: dict[str, Any]) -> str:
    return row.get("certainty", table.get("certainty", ""))


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_the_program_reads_it(path: Path, kvlab: Kvlab) -> None:
    """Strictly: an unknown key, metric or certainty is a mistake."""
    write(kvlab.folder, dataset=synthetic(), methods=["bf16"], published=str(path))
    kvlab.ok("validate", "small.yaml")


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_what_a_paper_does_not_state_is_said(path: Path) -> None:
    """Device of each row and, where it has bits, what their code stores: a number, or the sentence that there is none."""
    table = load(path)
    assert "gpu" in table
    said = [note for note in table.get("notes", []) if note.startswith("Stored bits are not stated: ")]
    unsaid = {row["method"].replace('"', "") for row in table["rows"] if row.get("bits", table.get("bits")) is not None
              and row.get("stored_bits", table.get("stored_bits")) is None}
    assert not unsaid and not said or said == [f"Stored bits are not stated: {', '.join(said_in_order(table, unsaid))}."]


def said_in_order(table: dict[str, Any], methods: set[str]) -> list[str]:
    return [name for name in dict.fromkeys(row["method"] for row in table["rows"]) if name in methods]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_the_table_has_a_row_for_all_that_is_varied(path: Path) -> None:
    """What no published row names is averaged by `kvlab table`: an axis, or datasets that have labels of their own."""
    experiment = load(path)
    sweep = experiment.get("sweep", {})
    varied = {name for name, values in (sweep.get("grid", {}) | sweep.get("zip", {})).items() if len(values) > 1}
    if sum("label" in item for item in experiment["dataset"]) > 1:
        varied.add("dataset")
    assert varied <= {column for row in load(path.parent / experiment["published"])["rows"] for column in row.get("at", {})}


def overrides(text: str) -> list[str]:
    """The `--set` of a README or description, as a shell splits them."""
    found = re.findall(r"(--set \S+?=(?:'[^']*'|\S+))", text)
    return [word for one in found for word in shlex.split(one)]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_the_promised_overrides_work(path: Path, kvlab: Kvlab) -> None:
    """Those of the README and of the file's own description, each on a capture of another model."""
    tokens = 131_072 if "tokens" in str(load(path).get("sweep")) else 4096
    asked = np.arange(63, tokens, tokens // 64)  # some in every stretch that a sweep takes
    layers = [random_layer(1, tokens, asked, q_heads=1, kv_heads=1), random_layer(2, 2048, q_heads=1, kv_heads=1)]
    evaluated, calibrated = ({name: array.astype(np.float16) for name, array in layer.items()} for layer in layers)
    write_capture(kvlab.folder / "kv.h5", {0: evaluated}, asked)
    write_capture(kvlab.folder / "calibration.h5", {0: calibrated})
    promised = overrides((PAPERS / "README.md").read_text(encoding="utf-8"))
    assert len(promised) == 4
    own = overrides(load(path)["description"])
    if "batch" in str(load(path).get("sweep")):
        assert path.relative_to(PAPERS).as_posix() in ("oscar_ots/batch.yaml", "oscar_cov/speedup_batch.yaml", "oscar_cov/table8.yaml")
        promised = []
    for words in filter(None, (promised, own)):
        kvlab.ok("validate", path, *words)


@pytest.mark.parametrize("path", PUBLISHED, ids=name_of)
def test_means_add_up_or_are_flagged(path: Path) -> None:
    table = load(path)
    for mean, parts in table.get("means", {}).items():
        checked = 0
        for row in table["rows"]:
            values = row.get("values", {})
            if mean not in values or not set(parts) <= set(values):
                continue
            checked += 1
            # Two digits are printed, so a mean of printed numbers may be off by one and a half of the last.
            adds_up = abs(fmean(values[part] for part in parts) - values[mean]) < 0.0151
            is_flagged = certainty(table, row) == "conflicting" and "mean" in row.get("note", "")
            assert adds_up != is_flagged, f"{row['method']}, {row.get('model')}: {values}"
        assert checked > 0


def test_the_row_of_oscar_that_does_not_add_up_is_kept() -> None:
    table = load(PAPERS / "oscar_cov/table2.published.yaml")
    (row,) = [row for row in table["rows"] if row["method"] == "OSCAR" and row["model"] == "Qwen3-8B"]
    assert row["values"]["mean"] == 69.416 and certainty(table, row) == "conflicting"
    assert fmean(row["values"][task] for task in table["means"]["mean"]) == pytest.approx(69.63, abs=0.005)


def test_ratios_that_the_papers_print() -> None:
    """Speed-ups and shares that follow from other numbers of the same table."""
    def values(file: str, method: str, **place: Any) -> dict[str, float]:
        found = [row["values"] for row in load(PAPERS / file)["rows"]
                 if row["method"] == method and row.get("at", place) == place]
        assert len(found) == 1, (file, method, found)
        return found[0]

    latency = {method: values("oscar_ots/table11.published.yaml", method, tokens=131072) for method in ("BF16", "OScaR")}
    assert latency["BF16"]["latency"] / latency["OScaR"]["latency"] == pytest.approx(3.01, abs=0.005)
    assert latency["OScaR"]["speed-up over BF16"] == 3.01
    batch = {method: values("oscar_ots/batch.published.yaml", method, batch=48) for method in ("BF16", "OScaR")}
    assert batch["OScaR"]["throughput"] / batch["BF16"]["throughput"] == pytest.approx(4.09, abs=0.005)
    # 36 layers, 8 KV heads, 128 channels, 16 bits, 48 sequences of 4,000 tokens; 3 bits of them.
    assert batch["BF16"]["memory"] == pytest.approx(36 * 8 * 128 * 2 * 2 * 48 * 4000 / 1e9, abs=0.05)
    assert batch["OScaR"]["memory"] == pytest.approx(batch["BF16"]["memory"] * 3 / 16, abs=0.05)
    # Operations: so many an element times d·L.
    prefill = {row["method"]: row["values"]["prefill"] for row in load(PAPERS / "oscar_ots/table3_4.published.yaml")["rows"]}
    for method, operations in {"KIVI": 5, "QuaRot": 19, "OScaR": 22}.items():
        assert prefill[method] == pytest.approx(operations * 4096 * 10_000 / 1e6, abs=0.05)
    # Attention's share of a step and its time give the step's time, and so quantization's share.
    oscar = values("oscar_cov/table8.published.yaml", "OSCAR")
    step = oscar["attention"] / oscar["share of attention"]
    assert oscar["quantization"] / step == pytest.approx(oscar["share of quantization"], abs=0.05)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_an_experiment_fits_its_published_table(path: Path) -> None:
    """Each published row names a label of the experiment and values that its axes or datasets take."""
    experiment = load(path)
    assert experiment["published"] == path.with_suffix("").name + ".published.yaml"
    labels = {use if isinstance(use, str) else use.get("label", use.get("use")) for use in experiment["methods"]}
    sweep = experiment.get("sweep", {})
    axes = sweep.get("grid", {}) | sweep.get("zip", {})
    places = axes | {"dataset": [item.get("label") for item in experiment["dataset"]]}
    table = load(path.parent / experiment["published"])
    for row in table["rows"]:
        if "label" not in row:
            continue
        assert row["label"] in labels, row
        for column, value in row.get("at", {}).items():
            assert value in places[column], row
    for metric in table["metrics"].values():
        if "over" in metric:
            assert metric["over"] in labels


def test_the_readme_lists_every_table() -> None:
    text = (PAPERS / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([a-z_]+/[a-z0-9_]+(?:\.published)?\.yaml)\)", text))
    tables = {name_of(path) for path in EXPERIMENTS}
    tables |= {name_of(path) for path in PUBLISHED if path.with_name(path.name.replace(".published", "")) not in EXPERIMENTS}
    assert listed == tables


def test_a_results_file_holds_the_published_numbers(kvlab: Kvlab) -> None:
    """The table needs no other file, and shards and merges keep it."""
    (kvlab.folder / "t.published.yaml").write_text(
        "{paper: A, table: Table 1, title: numbers, model: M, certainty: second-hand,"
        " metrics: {score: {unit: '%', beside: wo_rel, proxy: no task is run}},"
        " rows: [{method: KIVI, label: kivi, values: {score: 39.60}}, {method: TQ, not_run: no such method, values: {score: 4}}]}",
        encoding="utf-8")
    write(kvlab.folder, published="t.published.yaml")
    for shard in ("1/2", "2/2"):
        kvlab.ok("run", "small.yaml", "--shard", shard, "--out", f"part{shard[0]}.h5")
    kvlab.ok("merge", "small.h5", "part1.h5", "part2.h5")
    (kvlab.folder / "t.published.yaml").unlink()
    (measured,) = [row["wo_rel"] for row in rows(kvlab.folder / "small.h5") if row["label"] == "kivi"]
    text = kvlab.ok("table", "small.h5").out
    assert text.startswith("A, Table 1: numbers\n")
    assert re.search(rf"^KIVI +kivi +39\.60 +{measured:#.4g} +model, metric$", text, re.MULTILINE), text
    assert re.search(r"^TQ +- +4 +- +-$", text, re.MULTILINE), text
    assert "not run here: no such method (TQ)" in text
    for layout in ("markdown", "latex", "csv"):
        assert "39.6" in kvlab.ok("table", "small.h5", "--format", layout).out
    assert kvlab.ok("table", "small.h5", "--name", "default").out.startswith("label ")
