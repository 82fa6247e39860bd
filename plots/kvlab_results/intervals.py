"""The intervals that `kvlab table` prints: the same resamples, so the same numbers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np

NEEDED_PASSAGES = 16  # fewer say too little about another text
_RESAMPLES, _SEED = 10_000, 20260519  # as core/report/bootstrap.cpp


def interval(passages: Iterable[float]) -> tuple[float, float]:
    """The 95% interval of a mean, resampling its passages; NaN where these are fewer than 16 or not all finite."""
    values = np.fromiter(passages, dtype=float)
    if values.size < NEEDED_PASSAGES or not np.isfinite(values).all():
        return float("nan"), float("nan")
    means = np.sort(values[_draws(values.size)].mean(axis=1))
    return float(means[_RESAMPLES * 25 // 1000]), float(means[_RESAMPLES * 975 // 1000 - 1])


@cache
def _draws(count: int) -> np.ndarray:
    """Places below `count`, [resamples, count]."""
    high = _mt19937_64(_SEED, _RESAMPLES * count) >> np.uint64(32)
    return (high * np.uint64(count) >> np.uint64(32)).astype(np.intp).reshape(_RESAMPLES, count)


def _mt19937_64(seed: int, count: int) -> np.ndarray:
    """Numbers of C++'s std::mt19937_64 (Nishimura, 2000), which numpy lacks."""
    n, m = 312, 156
    first = [seed]
    for i in range(1, n):
        first.append((6364136223846793005 * (first[-1] ^ (first[-1] >> 62)) + i) & (2**64 - 1))
    state = np.array(first, dtype=np.uint64)
    one, low = np.uint64(1), np.uint64(2**31 - 1)

    def mixed(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
        word = (upper & ~low) | (lower & low)
        return (word >> one) ^ np.where(word & one, np.uint64(0xB5026F5AA96619E9), np.uint64(0))

    blocks = []
    for _ in range(-(-count // n)):
        new = np.empty_like(state)
        new[:m] = state[m:] ^ mixed(state[:m], state[1:m + 1])
        new[m:-1] = new[:m - 1] ^ mixed(state[m:-1], state[m + 1:])
        new[-1:] = new[m - 1:m] ^ mixed(state[-1:], new[:1])
        state = new
        word = state ^ (state >> np.uint64(29) & np.uint64(0x5555555555555555))
        word ^= word << np.uint64(17) & np.uint64(0x71D67FFFEDA60000)
        word ^= word << np.uint64(37) & np.uint64(0xFFF7EEE000000000)
        blocks.append(word ^ (word >> np.uint64(43)))
    return np.concatenate(blocks)[:count]
