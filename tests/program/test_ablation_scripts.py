"""The scripts that read results of ablations, on small files with numbers worked by hand, and experiments/ablations/README.md."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from experiment_text import synthetic, write
from kvlab_program import REPOSITORY, Kvlab, program_path
from results_file import rows as summary_rows


def cells_of(script: str, *arguments: object, given: str | None = None) -> list[list[str]]:
    """The rows of the table that a script prints, without the rule."""
    done = subprocess.run([sys.executable, str(REPOSITORY / "scripts" / script), *map(str, arguments)], input=given,
                          capture_output=True, text=True, check=True)  # fmt: skip
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()]
    return [lines[0], *lines[2:]]


@pytest.mark.parametrize("script", ["error_shares", "metric_validity", "seconds", "sum_of_parts", "token_classes", "wasted_bits"])
def test_a_file_that_holds_no_results_is_a_sentence(script: str, tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")
    h5py.File(tmp_path / "empty.h5", "w").close()
    for name, said in {"none.h5": "there is no file", "text.h5": "cannot be read", "empty.h5": "holds no results"}.items():
        path = str(tmp_path / name)
        done = subprocess.run([sys.executable, str(REPOSITORY / "scripts" / f"{script}.py"), *[path] * (1 + (script == "metric_validity"))],
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith(f"{script}.py: ") and said in done.stderr and path in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_error_shares(tmp_path: Path) -> None:
    tokens = np.ones((1, 2, 400))
    tokens[0, :, 10] = 51.0  # the worst 1% are four tokens: 102 + 3·2 of 900
    tokens[0, :, :4] = np.nan  # never quantized
    channels = np.ones((1, 2, 13, 4))
    channels[..., 3] = 2.0  # 2 of 5
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["summary/label"], file["summary/cell"] = ["kivi"], ["c"]
        file["cells/c/tokens/k_se"], file["cells/c/tokens/k_se_channels"] = tokens, channels
        file["cells/c/tokens/v_se"] = np.zeros((1, 2, 400))  # a passthrough side has no channels
    heading, row = cells_of("error_shares.py", tmp_path / "r.h5")
    assert heading[1:3] == ["keys: tokens", "keys: channel"]
    whole = 2 * 395 + 102
    expected = [108 / whole, 0.4, (102 + 2 * 59) / whole, 2 * 256 / whole]
    assert row == ["kivi", *(f"{100 * share:.1f}" for share in expected), "–", "–", "–", "–"]


def test_token_classes(tmp_path: Path) -> None:
    norms = np.full((1, 2, 8), 4.0)
    norms[..., 3] = 1.0  # below half of the norm of most
    errors = np.full((1, 2, 8), 1.6)
    errors[..., 3] = 0.5
    errors[..., 7] = np.nan  # never quantized
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["summary/dataset"], file["summary/label"] = ["mixed", "alike"], ["kivi", "kivi"]
        file["summary/cell"] = ["c", "d"]
        file["cells/c/tokens/k_se"], file["cells/c/tokens/k_norm"] = errors, norms
        file["cells/d/tokens/k_se"], file["cells/d/tokens/k_norm"] = np.ones((1, 2, 8)), np.ones((1, 2, 8))
    heading, *rows = cells_of("token_classes.py", tmp_path / "r.h5")
    assert heading == ["dataset", "tokens", "kivi"]
    assert rows == [["mixed", "normal", "1.6 (10.0%)"], ["mixed", "small", "0.5 (50.0%)"], ["alike", "normal", "1 (100.0%)"]]


def test_sum_of_parts(tmp_path: Path) -> None:
    rows = {"kivi": [0.3, 0.5], "kivi, layer 0": [0.1, 0.2], "kivi, layer 1": [0.05, 0.2],
            "kivi, keys only": [0.2, 0.4], "kivi, values only": [0.1, 0.1]}  # fmt: skip
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["summary/label"] = [label for _ in range(2) for label in rows]
        file["summary/dataset"] = [f"passage {i}" for i in range(2) for _ in rows]
        file["summary/dnll"] = [numbers[i] for i in range(2) for numbers in rows.values()]
    _, row, *rest = cells_of("sum_of_parts.py", tmp_path / "r.h5")
    assert row == ["kivi", "0.4000", "0.2750 (0.50 to 0.80)", "0.3000", "0.1000", "0.4000 (1.00 to 1.00)"]
    assert [line for line in rest if len(line) > 1] == [["layer", "kivi"], ["---", "---:"], ["0", "0.1500"], ["1", "0.1250"]]


def test_wasted_bits_of_real_keys(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "r.h5", "w") as file:
        file["summary/label"] = ["a", "b", "b"]
        for name, column in {"bits_per_element_hist": [3.0, 2.5, 2.5], "k_residual_trace": [1.0, 2.0, 4.0],
                             "k_bits_needed": [0.5, 0.4, 0.8], "k_nmse": [0.1] * 3, "v_nmse": [0.1] * 3}.items():  # fmt: skip
            file[f"summary/{name}"] = column
    heading, *rows = cells_of("wasted_bits.py", tmp_path / "r.h5")
    assert heading == ["label", "held", "k_residual_trace", "needed", "wasted"]
    assert rows == [["b", "2.500", "3", "0.600", "1.900"], ["a", "3.000", "1", "0.500", "2.500"]]


def test_claims_table_has_texts_and_what_is_flipped() -> None:
    def found(ratio: float, low: float, high: float, **more: object) -> dict:
        return {"ratio": ratio, "interval": [math.log(low), math.log(high)], **more}

    claim = found(0.5, 0.4, 0.6, sentence="A is better than B.", source="p", metric="wo_rel", claimed="lower", within=None,
                  differing=[], verdict="upheld", reason="",
                  by_text=[found(0.4, 0.3, 0.5, name="Austen", flipped=False), found(0.6, 0.5, 0.7, name="jargon", flipped=False)],
                  by_rows=[found(2, 1.5, 2.5, name="a over b", flipped=True)])  # fmt: skip
    bare = claim | {"ratio": None, "interval": [None, None], "verdict": "undecided", "reason": "no row has label x",
                    "by_text": [], "by_rows": []}  # fmt: skip
    heading, first, second = cells_of("claims_table.py", given=json.dumps([claim, bare]))
    assert heading[3:] == ["measured ratio [95%]", "Austen", "jargon", "verdict"]
    assert first[3:] == ["0.500 [0.400, 0.600]", "0.400 [0.300, 0.500]", "0.600 [0.500, 0.700]",
                         "upheld; the other way round in a over b 2.000 [1.500, 2.500]"]  # fmt: skip
    assert second[3:] == ["–", "–", "–", "undecided: no row has label x"]


def test_claims_table_has_a_column_a_switch() -> None:
    def part(name: str, ratio: float) -> dict:
        return {"name": name, "ratio": ratio, "interval": [math.log(ratio * 0.9), math.log(ratio * 1.1)], "flipped": False}

    claim = {"sentence": "A is better than B.", "by_rows": [part("a over b", 0.5), part("a, s over b, s", 2.0), part("a, t over b, t", 0.6),
                                                            part("a, s over b", 0.1)]}  # fmt: skip
    alone = {"sentence": "C.", "by_rows": [part("c over d", 0.5)]}
    heading, row = cells_of("claims_table.py", "--switches", given=json.dumps([claim, alone]))
    assert heading == ["sentence", "as their sources run", "s", "t"]
    assert row == ["A is better than B", "0.500 [0.450, 0.550]", "**2.000 [1.800, 2.200]**", "0.600 [0.540, 0.660]"]


def test_seconds_of_results(tmp_path: Path) -> None:
    for name, seconds in {"grid": [1.5, 2.0], "norm": [4.0]}.items():
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            for index, second in enumerate(seconds):
                file.create_group(f"cells/{index}").attrs["seconds"] = second
    _, *found = cells_of("seconds.py", tmp_path / "grid.h5", tmp_path / "norm.h5")
    assert found == [["grid", "2", "4"], ["norm", "1", "4"], ["together", "3", "8"]]


def test_times_of_some_experiments(tmp_path: Path) -> None:
    """Of a tree of its own, as results/ablations of the repository may hold anything."""
    shutil.copytree(REPOSITORY / "scripts", tmp_path / "scripts")
    for folder in ("results/ablations", "experiments/ablations"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("grid", "norm", "clip"):
        (tmp_path / f"experiments/ablations/{name}.yaml").touch()
    for name, second in {"grid": 1.0, "norm": 4.0}.items():
        with h5py.File(tmp_path / f"results/ablations/{name}.h5", "w") as file:
            file.create_group("cells/0").attrs["seconds"] = second

    def times(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", str(tmp_path / "scripts/ablations.sh"), "--times", *names], capture_output=True, text=True, check=False,
                              env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})  # fmt: skip

    assert times("norm").stdout.splitlines()[2:] == ["| norm | 1 | 4 |", "| together | 1 | 4 |"]
    assert times().stdout.splitlines()[-1] == "| together | 2 | 5 |"
    missing = times("clip")
    assert missing.returncode == 2 and missing.stderr == "seconds.py: there is no file results/ablations/clip.h5\n"


def test_frontier(tmp_path: Path) -> None:
    """A program that prints what `kvlab table` would: a is cheapest, c better, b dearer than a and as good, d and e dominated, g infinite."""
    means = "\n".join(["label,group,bits_x,wo_rel,wo_rel low,wo_rel high,cells", "d,32,3.0,0.30,0.28,0.32,8", "a,32,2.0,0.20,0.18,0.22,8",
                       "b,32,2.5,0.21,0.2,0.22,8", "c,32,3.0,0.10,0.09,0.11,8", "e,32,4.0,0.15,0.14,0.16,8", "f,32,1.0,,,,0", "g,32,1.5,inf,,,8"])  # fmt: skip
    off = {"a / 32": "label,group,wo_rel,wo_rel off low,wo_rel off high\nb,32,0.21,-0.1,0.2\nc,32,0.1,-0.6,0.1\na,32,0.2,,\nd,32,0.3,0.2,0.8\nf,32,,,\n",
           "c / 32": "label,group,wo_rel,wo_rel off low,wo_rel off high\na,32,0.2,-0.1,2\nb,32,0.21,0.8,1.3\nc,32,0.1,,\nd,32,0.3,1,2\ne,32,0.15,0.2,0.8\n"}  # fmt: skip
    program = tmp_path / "kvlab"
    program.write_text(f"#!{sys.executable}\nimport sys\noff = {off!r}\n"
                       f"print(off[sys.argv[-1]] if '--against' in sys.argv else {means!r})\n", encoding="utf-8")  # fmt: skip
    program.chmod(0o755)
    heading, *rows = cells_of("frontier.py", "r.h5", "--x", "bits_x", "--value", "wo_rel", "--rows", "label,group", "--kvlab", program)
    assert heading == ["frontier of wo_rel", "bits_x", "wo_rel", "not distinguishable from it"]
    assert rows == [["a / 32", "2.000", "0.2 ±0.02", "b / 32 (2.500)"],
                    ["c / 32", "3.000", "0.1 ±0.01", "a / 32 (2.000)"]]  # c itself is no rival of a: it holds as much as the next  # fmt: skip


def test_the_frontier_leaves_out_what_was_measured_on_less(kvlab: Kvlab) -> None:
    """A row without its worst passage would have the least error of all: its mean is of other data."""
    write(kvlab.folder, methods=["kivi", "int2_naive"], dataset=[synthetic(passage=passage) for passage in range(4)])
    kvlab.ok("run", "small.yaml")
    with h5py.File(kvlab.folder / "small.h5", "r+") as file:
        naive = [cell.decode() for cell, label in zip(file["summary/cell"][:], file["summary/label"].asstr()[:]) if label == "int2_naive"]
        for place, cell in enumerate(naive):
            attributes = file["cells"][cell].attrs
            scalars = attributes["scalars"]
            scalars[list(attributes["scalar_names"]).index("wo_rel")] = np.nan if place == 0 else 1e-6
            attributes["scalars"] = scalars
    done = subprocess.run([sys.executable, str(REPOSITORY / "scripts/frontier.py"), str(kvlab.folder / "small.h5"), "--x", "bits_per_element",
                           "--value", "wo_rel", "--rows", "label", "--kvlab", str(program_path())],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()[2:]] == ["| kivi"]
    assert done.stderr == "frontier.py: left out: int2_naive: 3 cells, others have 4\n"


def test_frontier_of_a_results_file(kvlab: Kvlab) -> None:
    """With the program itself: what no row beats in both columns, its interval, and its label as `--against` takes it."""
    write(kvlab.folder, methods=["int2_naive", "kivi", "kcvt_base", "oscar_ots", "quarot_token"],
          dataset=[synthetic(passage=passage) for passage in range(4)])  # fmt: skip
    kvlab.ok("run", "small.yaml")
    _, *found = cells_of("frontier.py", kvlab.folder / "small.h5", "--x", "bits_per_element", "--value", "wo_rel", "--rows", "label",
                         "--kvlab", program_path())  # fmt: skip
    points: dict[str, list[tuple[float, float]]] = {}
    for row in summary_rows(kvlab.folder / "small.h5"):
        points.setdefault(row["label"], []).append((row["bits_per_element"], row["wo_rel"]))
    means = {label: np.mean(values, axis=0) for label, values in points.items()}
    expected = {label for label, mean in means.items() if not any((other <= mean).all() and (other < mean).any() for other in means.values())}
    assert {row[0] for row in found} == expected and all("±" in row[2] for row in found)


ABLATIONS = sorted(path.stem for path in (REPOSITORY / "experiments/ablations").glob("*.yaml"))


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_has_its_command_table_picture_and_sentence(name: str) -> None:
    """In experiments/ablations/README.md, with the files that scripts/ablations.sh writes."""
    readme = (REPOSITORY / "experiments/ablations/README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^###? {name}\n(.*?)(?=^##|\Z)", readme, re.DOTALL | re.MULTILINE)
    assert f"{name}`" in section or f"{name}.yaml" in section, "no command"
    assert "\n| --- |" in section, "no table"
    assert any(len(line) > 100 and not line.startswith(("|", "!", "`")) for line in section.splitlines()), "no sentence"
    pictures = re.findall(r"\]\(\.\./\.\./(results/reference/ablations/[\w.]+\.svg)\)", section)
    assert pictures and all((REPOSITORY / picture).is_file() for picture in pictures), "no picture"
    assert (REPOSITORY / f"results/reference/ablations/{name}.md").is_file()
