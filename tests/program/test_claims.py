"""`kvlab claims`: verdicts on published sentences from what a results file holds (contract section 2)."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiment_text import synthetic, write
from kvlab_program import Kvlab
from results_file import rows

PASSAGES = 16


def claims(kvlab: Kvlab, file: str) -> dict[str, dict[str, Any]]:
    return {claim["id"]: claim for claim in json.loads(kvlab.ok("claims", file, "--json").out)}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base and rotation only on sixteen passages of one synthetic model."""
    folder = tmp_path_factory.mktemp("many")
    write(folder, methods=["kcvt_base", "hadamard"], measure=["attention"], probes={"count": 4, "placement": "last"},
          dataset=[synthetic(passage=number) for number in range(PASSAGES)])
    Kvlab(folder).ok("run", "small.yaml")
    return folder / "small.h5"


def test_a_verdict_from_sixteen_passages(kvlab: Kvlab, many: Path) -> None:
    """Effect and verdict agree with what the summary holds, computed here by another way."""
    shutil.copy(many, kvlab.folder / "small.h5")
    found = claims(kvlab, "small.h5")["rotation_alone_helps"]
    wo_rel = {(row["dataset"], row["method"]): row["wo_rel"] for row in rows(many)}
    ratios = [math.log(wo_rel[name, "hadamard"] / wo_rel[name, "kcvt_base"])
              for name in {row["dataset"] for row in rows(many)}]
    assert found["passages"] == found["pairs"] == len(ratios) == PASSAGES
    assert found["effect"] == pytest.approx(np.mean(ratios))
    low, high = found["interval"]
    spread = 1.96 * np.std(ratios) / PASSAGES**0.5
    assert low == pytest.approx(np.mean(ratios) - spread, abs=0.5 * spread)
    assert high == pytest.approx(np.mean(ratios) + spread, abs=0.5 * spread)
    covers = low < 0 < high
    expected = "undecided" if covers else "upheld" if found["effect"] < 0 else "reversed"
    assert found["verdict"] == expected
    assert kvlab.ok("claims", "small.h5", "--json").out == kvlab.ok("claims", "small.h5", "--json").out


def test_two_passages_decide_nothing_but_show_their_effect(kvlab: Kvlab) -> None:
    write(kvlab.folder, methods=["kcvt_base", "token_scale"], dataset=[synthetic(), synthetic(passage=1)])
    kvlab.ok("run", "small.yaml")
    found = claims(kvlab, "small.h5")
    scale = found["scale_alone_hurts"]
    assert scale["verdict"] == "undecided" and scale["reason"] == "2 passages, a verdict needs 16"
    assert scale["ratio"] > 0 and scale["interval"] == [None, None]
    missing = found["oscar_ots_beats_kivi"]
    assert missing["reason"] == "no row has label oscar_ots; no row has label kivi" and missing["effect"] is None
    text = kvlab.ok("claims", "small.h5").out
    assert all(identity in text for identity in found)
    assert "undecided: 2 passages, a verdict needs 16" in text and "Table 9" in text


def test_bit_reversal_over_whole_rows_is_no_evidence(kvlab: Kvlab) -> None:
    """At G = d a permutation changes nothing: such pairs would make every effect smaller."""
    data = synthetic(tokens=512)
    write(kvlab.folder, dataset=data, calibration=data | {"passage": 1}, measure=["attention"], sweep={"grid": {"group": [32, 64]}}, methods=[
        "oscar_cov",
        {"use": "oscar_cov", "label": "no P", "set": {"key.bit_reversal": False, "value.bit_reversal": False}}])
    kvlab.ok("run", "small.yaml")
    found = claims(kvlab, "small.h5")["bit_reversal_helps"]
    assert found["pairs"] == 1 and found["effect"] != 0
