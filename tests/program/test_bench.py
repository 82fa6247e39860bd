"""kvlab_bench: names, counters and the results file (contract section 8)."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from kvlab_program import Kvlab, program_path

SAMPLES = r"decode/backend:(cpu|torch_sdpa)/format:(f1|f32)/batch:1/tokens:32768/heads:32x8/dim:128/.*cache:hot/"


def bench(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = program_path().with_name("kvlab_bench")
    if not program.is_file():
        pytest.skip("kvlab_bench is not built")
    argv = [str(program), *(str(argument) for argument in arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False,
                          env=os.environ | environment)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bench") / "out/bench.h5"
    done = bench(f"--benchmark_filter={SAMPLES}", "--benchmark_min_time=0.02", "--kvlab_out", file)
    assert done.returncode == 0, done.stderr
    return file


def test_names_have_their_keys_in_order() -> None:
    names = bench("--benchmark_list_tests").stdout.splitlines()
    kernels = [name for name in names if not name.startswith("experiment/")]
    assert kernels
    order = r"(encode|decode|append|dequantize)/backend:\w+/format:[^/]+/batch:\d+/tokens:\d+/heads:\d+x\d+/dim:\d+(/group:\d+)?/cache:(cold|hot)(/|$)"
    assert [name for name in kernels if not re.match(order, name)] == []


def test_the_cpu_has_every_operation() -> None:
    names = bench("--benchmark_list_tests").stdout.splitlines()
    kernels = {name.split("/")[0] for name in names if "/backend:cpu/" in name}
    assert kernels == {"encode", "decode", "append", "dequantize", "experiment"}
    batches = {re.sub(r".*/batch:(\d+)/.*", r"\1", name) for name in names if name.startswith("append/backend:cpu/")}
    assert batches == {"1", "8"}


def test_steps_on_the_cpu_are_timed_with_their_bytes(tmp_path: Path) -> None:
    """A step of F1 and one sequence: a token of 8 heads, 128 channels and two sides through the ring, and 72 bytes a head."""
    file = tmp_path / "bench.h5"
    done = bench("--benchmark_filter=append/backend:cpu/format:f1/batch:1/.*cache:hot", "--kvlab_out", file)
    assert done.returncode == 0, done.stderr
    with h5py.File(file) as results:
        (cell,) = results["summary/cell"].asstr()[:]
        assert results["summary/status"].asstr()[0] == "complete"
        assert results["summary/bytes"][0] == 3 * 2 * 8 * 128 * 2 + 8 * 72
        assert results["summary/bytes_per_second"][0] > 0
        samples = results[f"cells/{cell}/samples/append_us"][:]
        assert results["summary/append_us"][0] == pytest.approx(np.median(samples) / 1e3)


def test_without_a_gpu_one_line_says_why() -> None:
    done = bench("--benchmark_list_tests", CUDA_VISIBLE_DEVICES="")
    assert "backend:cuda" not in done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("kvlab_bench: no cuda cases: ")


def test_bench_model_needs_a_gpu_and_says_so(kvlab: Kvlab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "bench-model needs " in kvlab.refused("bench-model", "--out", "model.h5").err
    assert not (kvlab.folder / "model.h5").exists()
    assert "--batches" in kvlab.refused("bench-model", "--out", "model.h5", "--batches", "0").err


def test_the_results_file_is_whole(results: Path, kvlab: Kvlab) -> None:
    assert "0 problems" in kvlab.ok("inspect", results, "--verify").out


def test_rows_hold_medians_of_the_raw_samples(results: Path) -> None:
    with h5py.File(results) as file:
        summary = {name: data[:] for name, data in file["summary"].items()}
        assert file.attrs["schema"] == "kvlab.results/1"
        assert "--kvlab_out" in file.attrs["argv"]
        methods = [method.decode() for method in summary["method"]]
        assert set(methods) == {"f1", "f32"}
        for row, cell in enumerate(summary["cell"]):
            samples = file[f"cells/{cell.decode()}/samples/decode_us"][:]
            assert samples.size >= 1 and (samples > 0).all()
            assert summary["decode_us"][row] == pytest.approx(np.median(samples) / 1e3)
            assert summary["bytes"][row] > 0 and summary["bytes_per_second"][row] > 0
            assert (summary["batch"][row], summary["tokens"][row], summary["dim"][row]) == (1, 32768, 128)
        assert summary["group"][methods.index("f1")] == 128
        assert summary["group"][methods.index("f32")] == 0


def test_repetitions_keep_all_their_samples(tmp_path: Path) -> None:
    file = tmp_path / "bench.h5"
    done = bench("--benchmark_filter=decode/backend:torch_sdpa/format:f32/.*cache:hot/form:folded", "--benchmark_min_time=0.01",
                 "--benchmark_repetitions=3", "--kvlab_out", file)
    assert done.returncode == 0, done.stderr
    runs = [line.split() for line in done.stdout.splitlines() if line.startswith("decode/")]
    runs = [run for run in runs if not re.search(r"_(mean|median|stddev|cv)$", run[0])]
    assert len(runs) == 3
    with h5py.File(file) as results:
        cell = results["summary/cell"].asstr()[0]
        assert results[f"cells/{cell}/samples/decode_us"].size == sum(int(run[5]) for run in runs)


def test_a_wrong_environment_is_a_sentence(tmp_path: Path) -> None:
    done = bench("--benchmark_list_tests", KVLAB_CPU="sse9")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "kvlab_bench: backend cpu is not available here: KVLAB_CPU is 'sse9', it must be portable or avx2"]


def test_an_experiments_file_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "mine.h5"
    with h5py.File(file, "w") as mine:
        mine.attrs["schema"] = "kvlab.results/1"
        mine.attrs["name"] = "mine"
    before = file.read_bytes()
    done = bench(f"--benchmark_filter={SAMPLES}", "--kvlab_out", file)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("kvlab_bench: ")
    assert file.read_bytes() == before


def test_the_table_prints_every_row(results: Path, kvlab: Kvlab) -> None:
    text = kvlab.ok("table", results).out
    assert "cpu f1" in text and "torch_sdpa f32" in text and "decode_us" in text
    by_label = kvlab.ok("table", results, "--rows", "label", "--cols", "tokens", "--value", "decode_us").out
    assert "32768" in by_label


def test_a_filter_that_fits_nothing(tmp_path: Path) -> None:
    """No success, and a file of earlier benchmarks is not replaced by one of none."""
    file = tmp_path / "bench.h5"
    assert bench(f"--benchmark_filter={SAMPLES}", "--benchmark_min_time=0.02", "--kvlab_out", file).returncode == 0
    before = file.read_bytes()
    done = bench("--benchmark_filter=no_such_benchmark", "--kvlab_out", file)
    assert done.returncode == 2 and "no_such_benchmark" in done.stderr
    assert file.read_bytes() == before


def test_a_file_that_is_no_results_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "notes.h5"
    file.write_text("mine")
    done = bench("--benchmark_filter=none", "--kvlab_out", file)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("kvlab_bench: ")
    assert file.read_text() == "mine"
