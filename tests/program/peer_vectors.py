"""Peer vectors by the schema of the published ones, made in numpy after the description of each code: other shapes and
seeds. One function a kind; each returns attributes and datasets of a case."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Array = np.ndarray
Vector = tuple[dict[str, Any], dict[str, Array]]
F32 = np.float32


def hadamard(d: int) -> Array:
    matrix = np.ones((1, 1))
    while len(matrix) < d:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(d)


def numbers(seed: int, *shape: int) -> Array:
    """Normals with two loud channels."""
    x = np.random.default_rng(seed).standard_normal(shape)
    x[..., 3] *= 6
    x[..., 5] += 4
    return x.astype(F32)


def groups(x: Array, axis: str, size: int) -> tuple[Array, Callable[[Array], Array]]:
    """[..., T, d] with groups as the last dimension, and the way back. `axis` as the vectors use the word."""
    if axis == "token":
        turned, back = groups(np.swapaxes(x, -1, -2), "channel", size)
        return turned, lambda y: np.swapaxes(back(y), -1, -2)
    shape = x.shape
    return x.reshape(*shape[:-1], -1, size), lambda y: y.reshape(*shape[:-1], -1)


def parameters(stored: Array, axis: str) -> Array:
    """A number a group, [..., T, d/G] or [..., T/G, d]."""
    return np.swapaxes(stored, -1, -2) if axis == "token" else stored


def words(codes: Array) -> Array:
    shifted = codes.astype(np.int64).reshape(*codes.shape[:-1], -1, 16) << (2 * np.arange(16))
    return shifted.sum(-1).astype(np.uint32).view(np.int32)


def kivi(seed: int, tensor: str, tokens: int, d: int, group: int, residual: int) -> Vector:
    axis = "token" if tensor == "K" else "channel"
    x = numbers(seed, 1, 3, tokens, d).astype(np.float16)
    held = tokens if residual == 0 else tokens - (tokens % residual if tensor == "K" else residual)
    grouped, back = groups(x[:, :, :held], axis, group)
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    scale = (high - low) / np.float16(3)
    codes = np.rint(np.clip((grouped - low) / scale, 0, 3))
    data = {"input": x.astype(F32), "codes": back(codes).astype(np.uint8), "dequant": back(codes * scale + low).astype(F32),
            "scale": parameters(scale[..., 0], axis).astype(F32), "min": parameters(low[..., 0], axis).astype(F32)}
    if tensor == "K":
        data["packed_triton"] = words(np.swapaxes(data["codes"], -1, -2))
        data["packed"] = np.swapaxes(data["packed_triton"], -1, -2).copy()
    else:
        data["packed"] = words(data["codes"])
    return {"method": "KIVI", "tensor": tensor, "axis": axis, "bits": 2, "group": group, "grid": "float_zero",
            "dtype": "fp16", "scale_dtype": "fp16", "dequant_dtype": "fp16", "residual_length": residual,
            "quantized_tokens": held}, data


def rounded_zero(grouped: Array, bits: int, hold_zero: bool, clip: float = 1.0) -> tuple[Array, Array, Array, Array]:
    """Codes, scale, zero and values of an integer zero point, float32."""
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    if hold_zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    low, high = low * F32(clip), high * F32(clip)
    most = F32(2**bits - 1)
    scale = (high - low) / most
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(grouped / scale) + zero, 0, most)
    return codes, scale, zero, scale * (codes - zero)


def quarot(seed: int, tokens: int, d: int, together: bool, bits: int) -> Vector:
    k, q = numbers(seed, 1, 2, tokens, d), numbers(seed + 1, 1, 2, tokens, d)
    rotated = {name: (x.astype(np.float64) @ hadamard(d)).astype(F32) for name, x in (("K", k), ("Q", q))}
    rows = rotated["K"].transpose(0, 2, 1, 3).reshape(1, tokens, 2 * d) if together else rotated["K"]
    codes, scale, zero, values = rounded_zero(rows, bits, hold_zero=True)

    def apart(x: Array) -> Array:
        return x.reshape(1, tokens, 2, d).transpose(0, 2, 1, 3) if together else x

    data = {"K": k, "Q": q, "K_rot": rotated["K"], "Q_rot": rotated["Q"], "codes": apart(codes).astype(np.int8),
            "scale": scale, "zero": zero, "dequant": apart(values)}
    return {"method": "QuaRot", "tensor": "K", "axis": "channel", "bits": bits, "group": 2 * d if together else d,
            "k_groupsize": -1 if together else d, "grid": "rounded_zero", "clip_ratio": 1.0, "dtype": "fp32",
            "scale_dtype": "fp32", "dequant_dtype": "fp32"}, data


def oscar2(seed: int, axis: str, tokens: int, d: int, group: int) -> Vector:
    x = numbers(seed, 1, 2, tokens, d)
    x[:, :, :group, :group] = 0 if axis == "channel" else x[:, :, :group, :group]
    grouped, back = groups(x, axis, group)
    empty = np.all(grouped == 0, -1, keepdims=True)
    wide = np.concatenate([np.where(empty, F32(-1), grouped), np.where(empty, F32(1), grouped)], -1)
    codes, scale, zero, _ = rounded_zero(wide, 2, hold_zero=False)
    codes = np.clip(np.rint(grouped / scale) + zero, 0, F32(3))
    values = scale * (codes - zero)
    return {"method": "OScaR", "mode": "primitive", "tensor": "K", "axis": axis, "bits": 2, "group": group,
            "grid": "rounded_zero", "clip_ratio": 1.0, "dtype": "fp32", "scale_dtype": "fp32", "dequant_dtype": "fp32",
            "padded_tokens": 0}, {
                "input": x, "codes": back(codes).astype(np.uint8), "dequant": back(values),
                "scale": parameters(scale[..., 0], axis), "zero": parameters(zero[..., 0], axis)}


def code_offset(grouped: Array, threshold: Array) -> tuple[Array, Array, Array, Array]:
    """OSCAR's rule: codes, scale, zero −lo/s and values."""
    clipped = np.clip(grouped, -threshold, threshold)
    low, high = clipped.min(-1, keepdims=True), clipped.max(-1, keepdims=True)
    scale = np.maximum(high - low, F32(1e-8)) / F32(3)
    zero = -low / scale
    codes = np.clip(np.floor(clipped / scale + zero + F32(0.5)), 0, 3)
    return codes, scale, zero, (codes - zero) * scale


def order_statistic(x: Array, ratio: float) -> Array:
    return np.sort(np.abs(x), -1)[..., int(ratio * x.shape[-1])][..., None]


def oscar_runtime(seed: int, tokens: int, d: int, group: int, clip: float) -> Vector:
    x = numbers(seed, tokens, 3, d)
    threshold = order_statistic(x, clip)  # of the whole head row
    grouped, back = groups(x, "channel", group)
    codes, scale, zero, values = code_offset(grouped, threshold[..., None])
    return {"method": "OSCAR", "kind": "torch_oracle", "tensor": "K", "axis": "channel", "bits": 2, "group": group,
            "grid": "float_zero", "clip_ratio": clip, "dtype": "fp32", "scale_dtype": "fp32", "dequant_dtype": "fp32"}, {
                "input": x, "codes": back(codes).astype(np.uint8), "dequant": back(values), "scale": scale[..., 0],
                "zero": zero[..., 0], "threshold": threshold[..., 0]}


def optr(seed: int, tokens: int, d: int, group: int, clip: float) -> Vector:
    x = numbers(seed, tokens, 2, d)
    grouped, back = groups(x, "channel", group)
    threshold = order_statistic(grouped, clip)
    codes, scale, zero, values = code_offset(grouped, threshold)
    return {"method": "OptR", "kind": "quantizer", "tensor": "K", "axis": "channel", "bits": 2, "group": group,
            "grid": "float_zero", "clip_ratio": clip, "scale_dtype": "fp32"}, {
                "input": x, "codes": back(codes).astype(np.uint8), "dequant": back(values), "scale": scale[..., 0],
                "zero": zero[..., 0], "threshold": threshold[..., 0], "grad_weight": numbers(seed + 1, tokens, 2, d)}


def oscar_calib(seed: int, tokens: int, kv_heads: int, gqa: int, d: int) -> Vector:
    q = numbers(seed, tokens, kv_heads * gqa, d)
    k, v = numbers(seed + 1, tokens, kv_heads, d), numbers(seed + 2, tokens, kv_heads, d)
    c_q, c_s = [], []
    for head in range(kv_heads):
        rows = q[:, head * gqa:(head + 1) * gqa].reshape(-1, d).astype(np.float64)
        keys, values = k[:, head].astype(np.float64), v[:, head].astype(np.float64)
        c_q.append(rows.T @ rows / len(rows))
        weight = np.einsum("ti,ij,tj->t", keys, c_q[-1], keys)
        c_s.append(values.T @ (values * (weight * tokens / weight.sum())[:, None]) / tokens)
    data: dict[str, Array] = {"Q": q, "K": k, "V": v}
    bits = d.bit_length() - 1
    reverse = [int(format(i, f"0{bits}b")[::-1], 2) for i in range(d)]
    for name, side, covariance in (("Q", "K", np.mean(c_q, 0)), ("S", "V", np.mean(c_s, 0))):
        values, vectors = np.linalg.eigh(covariance)
        data |= {f"C_{name}": covariance, f"eig_{name}": values, f"U_{name}": vectors}
        product = vectors @ hadamard(d)
        permuted = np.empty_like(product)
        permuted[:, reverse] = product[:, ::-1]  # rank i to bitrev(i)
        data[f"R_{side}"] = permuted.astype(F32)
    return {"method": "OSCAR", "kind": "calibration", "gqa": gqa, "composition": "r_h_pbr",
            "compositions": "r_h_pbr"}, data


def kitty(seed: int, tokens: int, d: int, ratio: float) -> Vector:
    x = numbers(seed, 1, 2, tokens, d)
    grouped, back = groups(x, "token", tokens)
    rank = np.argsort(-np.abs(x[0].astype(np.float64)).mean(1), -1)[:, :int(ratio * d)]
    mask = np.zeros((1, 2, d), np.uint8)
    np.put_along_axis(mask[0], rank, 1, -1)
    most = np.where(mask, F32(15), F32(3))[..., None, None]
    low, high = grouped.min(-1, keepdims=True), grouped.max(-1, keepdims=True)
    scale = np.maximum(high - low, F32(1e-4)) / most
    codes = np.rint(np.clip((grouped - low) / scale, 0, most))
    return {"method": "Kitty", "kind": "primitive", "tensor": "K", "axis": "token", "bits": 2, "group": tokens,
            "eps": 1e-4, "promote_bits": 4, "promote_ratio": ratio, "dtype": "fp32", "scale_dtype": "fp32",
            "dequant_dtype": "fp32"}, {
                "input": x, "codes": back(codes).astype(np.uint8), "dequant": back(codes * scale + low),
                "scale": parameters(scale[..., 0], "token"), "min": parameters(low[..., 0], "token"), "promote_mask": mask}


def kvquant(seed: int, tokens: int, d: int) -> Vector:
    x = numbers(seed, tokens, d)
    lut = np.array([-0.8, -0.25, 0.3, 0.9], F32)
    low, high = (np.quantile(x.astype(np.float64), share, -1)[:, None] for share in (0.005, 0.995))
    outlier = (x < low) | (x > high)
    inner = np.ma.masked_array(x, outlier)
    low, high = inner.min(-1).data[:, None], inner.max(-1).data[:, None]
    unit = (x - (high + low) / 2) / ((high - low) / 2)
    codes = np.abs(unit[..., None] - lut).argmin(-1)
    values = np.where(outlier, x, lut[codes] * ((high - low) / 2) + (high + low) / 2)
    return {"method": "KVQuant", "kind": "v_nuq", "tensor": "V", "axis": "channel", "bits": 2, "group": d,
            "sparsity_threshold": 0.99, "scale_dtype": "fp32"}, {
                "input": x, "lut": lut, "outlier_mask": outlier.astype(np.uint8), "dequant": values.astype(F32)}


def turboquant(seed: int, rows: int, d: int, corrected: bool) -> Vector:
    x = numbers(seed, rows, d)
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]
    centroids = np.array([-1.510, -0.4528, 0.4528, 1.510]) / np.sqrt(d)
    norms = np.linalg.norm(x.astype(np.float64), axis=1)
    unit = x.astype(np.float64) @ rotation.T / norms[:, None]
    codes = np.searchsorted((centroids[1:] + centroids[:-1]) / 2, unit)
    y = centroids[codes]
    if corrected:
        y = y / np.linalg.norm(y, axis=1, keepdims=True)
    return {"method": "TurboQuant+", "kind": "mse", "tensor": "K", "bits": 2, "group": d,
            "norm_correction": int(corrected)}, {
                "input": x, "rotation": rotation, "centroids": centroids, "codes": codes.astype(np.uint8), "norms": norms,
                "dequant": norms[:, None] * (y @ rotation)}


def rotatekv(seed: int, heads: int, tokens: int, d: int, pivots: int) -> Vector:
    k, v = numbers(seed, 1, heads, tokens, d), numbers(seed + 1, 1, heads, tokens, d)
    channels = k.transpose(0, 1, 3, 2).reshape(heads * d, tokens)
    order = channels.astype(np.float64).sum(1).argsort(kind="stable")
    mixed = channels[order].T.astype(np.float64) @ hadamard(heads * d)
    rotated = mixed.astype(F32).reshape(tokens, heads, d).transpose(1, 0, 2)
    exact = np.sort(np.random.default_rng(seed).choice(tokens, pivots, replace=False))
    others = np.setdiff1d(np.arange(tokens), exact)
    data: dict[str, Array] = {"K": k, "V": v, "reorder_index": order.astype(np.int32), "K_rot": rotated[None],
                              "pivot_tokens": exact.astype(np.int32)}
    read = {}
    for name, x in (("K", rotated), ("V", v[0])):
        codes, scale, zero, values = rounded_zero(x[:, others], 2, hold_zero=False, clip=0.8)
        read[name] = x.copy()
        read[name][:, others] = values
        data |= {f"{name}_codes": codes.astype(np.uint8), f"{name}_scale": scale, f"{name}_zero": zero}
    back = np.empty((heads * d, tokens))
    back[order] = (read["K"].transpose(1, 0, 2).reshape(tokens, -1).astype(np.float64) @ hadamard(heads * d)).T
    data |= {"K_dequant_rot": read["K"][None], "V_dequant": read["V"][None],
             "K_dequant": back.reshape(heads, d, tokens).transpose(0, 2, 1)[None].astype(F32)}
    return {"method": "RotateKV", "kind": "pipeline", "tensor": "KV", "axis": "channel", "bits": 2, "group": d,
            "grid": "rounded_zero", "clip_ratio": 0.8, "head_group": heads, "pivots": pivots, "dtype": "fp32",
            "scale_dtype": "fp32", "dequant_dtype": "fp32"}, data


def all_vectors(seed: int) -> dict[str, list[Vector]]:
    """File name to its cases."""
    return {
        "kivi": [kivi(seed, "K", 96, 48, 32, 0), kivi(seed + 1, "K", 200, 80, 64, 64), kivi(seed + 2, "V", 50, 96, 32, 0),
                 kivi(seed + 3, "V", 77, 64, 16, 20)],
        "quarot_new": [quarot(seed, 33, 64, False, 2), quarot(seed + 1, 20, 32, True, 2), quarot(seed + 2, 20, 32, True, 4)],
        "oscar2_7": [oscar2(seed, "token", 64, 40, 16), oscar2(seed + 1, "channel", 31, 64, 32)],
        "oscar_runtime_9": [oscar_runtime(seed, 40, 64, 64, 0.96), oscar_runtime(seed + 1, 33, 128, 32, 0.9)],
        "oscar_calib_2": [oscar_calib(seed, 120, 2, 3, 32)],
        "optr_x": [optr(seed, 40, 64, 32, 0.92)],
        "kitty": [kitty(seed, 64, 48, 0.25)],
        "kvquant": [kvquant(seed, 40, 160)],
        "turboquant": [turboquant(seed, 50, 64, True), turboquant(seed + 1, 30, 32, False)],
        "rotatekv": [rotatekv(seed, 2, 40, 32, 0), rotatekv(seed + 1, 4, 50, 64, 5)],
    }


def write_vectors(path: Path, cases: list[Vector]) -> Path:
    with h5py.File(path, "w") as file:
        for i, (attributes, data) in enumerate(cases):
            group = file.create_group(f"case_{i:03d}")
            for name, value in attributes.items():
                group.attrs[name] = value
            for name, array in data.items():
                group.create_dataset(name, data=np.ascontiguousarray(array), compression="gzip" if array.size else None)
    return path
