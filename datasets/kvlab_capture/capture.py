"""The one way in which a capture is made: text -> tokens -> float32 forward -> `kvlab.capture/1`."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import passages, probes, schema
from .cli import UserError, note, warn
from .loading import Model

if TYPE_CHECKING:
    import torch

    from .attention import LayerSample

REVISION = 1  # raise it when the numbers or the layout of the files that this code writes change
CREATED_BY = f"kvlab capture_hf.py {REVISION}"


@dataclass(frozen=True)
class Request:
    """What is captured of one text."""

    cut: passages.Cut
    probes: str = "strided:64"
    layers: tuple[int, ...] | None = None  # None: all
    dtype: str = "float32"
    keys_before_rope: bool = True


def libraries() -> dict[str, str]:
    """Versions that the numbers depend on, as attributes; does not import them."""
    return {"torch": version("torch"), "transformers": version("transformers"), "python": platform.python_version()}


def capture(model: Model, text: Path, request: Request, out: Path, attributes: dict[str, Any]) -> None:
    """Writes `out`, whole or not at all. `attributes` are added to the root's (argv, hash of inputs)."""
    layers = _layers(model, request.layers)
    taken = passages.cut(text, model.tokenizer, request.cut)
    positions = probes.positions(request.probes, request.cut.tokens)
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and request.cut.tokens > limit:
        warn(f"{request.cut.tokens} tokens are more than the {limit} positions that {model.name} was made for")

    with schema.capture_file(out, taken.tokens, positions, request.dtype) as writer:
        writer.set_attributes(_provenance(model, taken, request) | attributes)
        _forward(model, layers, taken.tokens, positions, request.keys_before_rope, writer)


def _layers(model: Model, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(range(model.n_layers))
    for layer in wanted:
        if not 0 <= layer < model.n_layers:
            raise UserError(f"{model.name} has layers 0 to {model.n_layers - 1}, but layer {layer} was asked for")
    return wanted


def _provenance(model: Model, taken: passages.Passages, request: Request) -> dict[str, Any]:
    return {
        "created_by": CREATED_BY,
        "model": model.name,
        "model_type": model.config.model_type,
        "n_layers": model.n_layers,
        **model.identity(),
        "rope": "post",
        **_rope(model.config),
        "text_file": taken.file_name,
        "text_sha256": taken.text_sha256,
        "text_first_char": taken.first_char,
        "text_chars": len(taken.text),
        "tokens_sha256": taken.tokens_sha256,
        "bos": int(taken.has_bos),
        "probes": request.probes,
        "forward_dtype": "float32",
        **libraries(),
    }


def _rope(config: Any) -> dict[str, Any]:
    """rope_theta, and rope_scaling as JSON where there is any; models with one RoPE a layer type give the whole table."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        return {}
    if "rope_theta" not in parameters:
        return {"rope_scaling": json.dumps(parameters, sort_keys=True)}
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    plain = scaling.get("rope_type", "default") == "default" and len(scaling) <= 1
    found: dict[str, Any] = {"rope_theta": float(parameters["rope_theta"])}
    return found if plain else found | {"rope_scaling": json.dumps(scaling, sort_keys=True)}


def _forward(
    model: Model,
    layers: tuple[int, ...],
    tokens: np.ndarray,
    positions: np.ndarray,
    keys_before_rope: bool,
    writer: schema.CaptureWriter,
) -> None:
    """One forward a passage, each layer written as it is computed, so that memory holds one layer at a time."""
    import torch

    from . import attention

    note(f"loading {model.name}")
    decoder = model.decoder
    modules = attention.find_attention(decoder, model.name)
    missing = [layer for layer in layers if layer not in modules]
    if missing:
        raise UserError(f"{model.name}: layer {missing[0]} has no Llama-like attention; layers that do: {_list(modules)}")
    wanted = {layer: modules[layer] for layer in layers}
    shapes: set[tuple[int, int, int]] = set()
    layouts: set[str] = set()
    seen: set[int] = set()

    for passage, row in enumerate(tokens):

        def keep(sample: LayerSample, passage: int = passage) -> None:
            if keys_before_rope and sample.k_pre is None:
                raise UserError(f"layer {sample.layer}: the keys before RoPE were not found; --no-k-pre captures the rest")
            shapes.add((sample.q.shape[0], *sample.k.shape[::2]))
            layouts.add(sample.rope_layout or "unknown")
            seen.add(sample.layer)
            if not writer.has_layer(sample.layer):
                width = sample.q.shape[0] * sample.q.shape[2]
                w_o = attention.output_matrix(wanted[sample.layer][1], sample.layer, width)
                writer.add_layer(sample.layer, _layer_attributes(sample, wanted[sample.layer][1]), w_o.numpy())
                if sample.sliding_window is not None and sample.sliding_window < len(row):
                    warn(f"layer {sample.layer} reads only the last {sample.sliding_window} of {len(row)} tokens")
            writer.add_passage(sample.layer, passage, _tensors(sample, positions, keys_before_rope))

        started = time.monotonic()
        with torch.inference_mode(), attention.recording(wanted, keep):
            decoder(input_ids=torch.from_numpy(row).long()[None].to(decoder.device), use_cache=False)
        seconds = time.monotonic() - started
        note(f"passage {passage + 1} of {len(tokens)}: {len(layers)} layers, {len(row)} tokens, {seconds:.1f} s")

    if seen != set(layers):
        raise UserError(f"{model.name}: layer {min(set(layers) - seen)} was not run by the model")
    if len(shapes) > 1:
        raise UserError(f"{model.name}: layers differ in heads or head size ({_list(shapes)}); capture them one by one")
    n_q, n_kv, dim = shapes.pop()
    writer.set_attributes({"n_q_heads": n_q, "n_kv_heads": n_kv, "head_dim": dim})
    layouts -= {"none", "unknown"}
    if len(layouts) == 1:
        writer.set_attributes({"rope_layout": layouts.pop()})


def _layer_attributes(sample: LayerSample, module: torch.nn.Module) -> dict[str, Any]:
    """`scale` is the model's own factor on q k^T; where it is not 1/sqrt(d), q was multiplied (see `_tensors`)."""
    attributes: dict[str, Any] = {"scale": sample.scale, "q_multiplier": _q_multiplier(sample)}
    if sample.rope_layout is not None:
        attributes["rope_layout"] = sample.rope_layout
    if sample.sliding_window is not None:
        attributes["sliding_window"] = sample.sliding_window
    if module.o_proj.bias is not None:
        attributes["o_proj_bias"] = 1
    return attributes


def _q_multiplier(sample: LayerSample) -> float:
    """scale * sqrt(d), 1 but for models with a scale of their own."""
    multiplier = sample.scale * sample.q.shape[-1] ** 0.5
    return 1.0 if abs(multiplier - 1.0) < 1e-6 else multiplier


def _tensors(sample: LayerSample, positions: np.ndarray, keys_before_rope: bool) -> dict[str, np.ndarray]:
    """q is stored such that scores are always q k^T / sqrt(d), as the contract has it."""
    import torch

    q = sample.q[:, torch.from_numpy(positions).long().to(sample.q.device)] * _q_multiplier(sample)
    tensors = {"q": q, "k": sample.k, "v": sample.v, "hidden_absmax": sample.hidden_absmax}
    if keys_before_rope:
        tensors["k_pre"] = sample.k_pre
    return {name: x.float().cpu().numpy() for name, x in tensors.items()}


def _list(items: Any) -> str:
    return ", ".join(str(item) for item in sorted(items))
