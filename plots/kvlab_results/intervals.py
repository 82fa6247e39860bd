"""The intervals that `kvlab table` prints (core/report/bootstrap.cpp): the same resamples, so the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

NEEDED_PASSAGES = 16  # fewer say too little about another text
FEWEST_PASSAGES = 4  # where blocks of positions are resampled too
SHARES = ("needle_exact",)  # of trials, each a block of its own: Wilson's interval
_RESAMPLES, _REPLICATES, _SEED = 10_000, 500, 20260519


@dataclass(frozen=True)
class Sampled:
    """A number, and what it would be over other draws of its blocks of positions; None where it is not known by block."""

    value: float
    replicates: np.ndarray | None = None

    @staticmethod
    def of_cell(value: float, sums: np.ndarray | None, metric: str) -> Sampled:
        """Of a cell's metric and its sums by block, [H, blocks, 2]."""
        if sums is None or not np.isfinite(value):
            return Sampled(value)
        over, under = np.moveaxis(sums[:, _block_draws(sums.shape[1])].sum(axis=2), -1, 0)  # [H, replicates]
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((over == 0) & (under == 0), 0, over / under)
        return Sampled(value, (np.sqrt(ratio) if metric.startswith(("out_rel", "wo_rel")) else ratio).mean(axis=0))

    @staticmethod
    def mean(numbers: Sequence[Sampled]) -> Sampled:
        value = sum(number.value for number in numbers) / len(numbers)
        if all(number.replicates is None for number in numbers):
            return Sampled(value)
        draws = [np.full(_REPLICATES, number.value) if number.replicates is None else number.replicates for number in numbers]
        return Sampled(value, np.mean(draws, axis=0))


def interval(passages: Sequence[Sampled], whole_models: bool = False) -> tuple[float, float]:
    """The 95% interval of a mean over passages, resampling them and, within them, their blocks; NaN where they are too few
    or not all finite."""
    values = np.array([passage.value for passage in passages])
    drawn = [passage.replicates for passage in passages if passage.replicates is not None]
    by_block = len(drawn) == len(passages)
    needed = NEEDED_PASSAGES if not by_block else 1 if whole_models else FEWEST_PASSAGES
    if len(passages) < needed or not np.isfinite(values).all():
        return float("nan"), float("nan")
    if by_block:
        draws = _draws(_RESAMPLES * len(passages) * 2)
        which, replicate = _below(draws[0::2], len(passages)), _below(draws[1::2], _REPLICATES)
        chosen = np.array(drawn)[which, replicate]
    else:
        chosen = values[_below(_draws(_RESAMPLES * len(passages)), len(passages))]
    means = np.sort(chosen.reshape(_RESAMPLES, len(passages)).mean(axis=1))
    return float(means[_RESAMPLES * 25 // 1000]), float(means[_RESAMPLES * 975 // 1000 - 1])


def of_share(shares: Sequence[float], trials: Sequence[int]) -> tuple[float, float, float]:
    """The share of all trials of the passages, with Wilson's 95% interval (JASA 22, 1927)."""
    n, z = sum(trials), 1.959963984540054
    share = sum(np.multiply(shares, trials)) / n
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return share, float(np.clip((middle - half) / scale, 0, share)), float(np.clip((middle + half) / scale, share, 1))


@cache
def _block_draws(blocks: int) -> np.ndarray:
    return _below(_draws(_REPLICATES * blocks), blocks).reshape(_REPLICATES, blocks)


def _below(draws: np.ndarray, count: int) -> np.ndarray:
    return (draws * np.uint64(count) >> np.uint64(32)).astype(np.intp)


@cache
def _draws(count: int) -> np.ndarray:
    """The upper halves of the numbers of C++'s std::mt19937_64 (Nishimura, 2000), which numpy lacks."""
    n, m = 312, 156
    first = [_SEED]
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
    return np.concatenate(blocks)[:count] >> np.uint64(32)
