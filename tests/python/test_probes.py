"""Probe positions follow the contract's formula."""

from __future__ import annotations

import numpy as np
import pytest
from kvlab_capture.cli import UserError
from kvlab_capture.probes import positions


@pytest.mark.parametrize(("tokens", "count"), [(2048, 64), (2047, 64), (100, 7), (512, 3), (10, 64), (2, 1), (1, 5)])
def test_strided_is_the_contracts_formula(tokens: int, count: int) -> None:
    half = tokens // 2
    expected = sorted({half + (i + 1) * (tokens - half) // count - 1 for i in range(count)} - {-1})
    assert positions(f"strided:{count}", tokens).tolist() == expected


def test_strided_by_hand() -> None:
    assert positions("strided:4", 16).tolist() == [9, 11, 13, 15]
    assert positions("strided:3", 15).tolist() == [8, 11, 14]  # 7 + floor(8/3, 16/3, 24/3) - 1
    assert positions("strided:64", 6).tolist() == [2, 3, 4, 5]  # equal ones once


def test_last_and_all() -> None:
    assert positions("last:3", 10).tolist() == [7, 8, 9]
    assert positions("last:30", 4).tolist() == [0, 1, 2, 3]
    assert positions("all", 3).tolist() == [0, 1, 2]
    assert positions("all", 3).dtype == np.int32


@pytest.mark.parametrize("spec", ["", "strided", "strided:0", "last:-1", "strided:4.5", "first:3", "all:3"])
def test_another_form_is_refused(spec: str) -> None:
    with pytest.raises(UserError, match="strided:N, last:N or all"):
        positions(spec, 10)
