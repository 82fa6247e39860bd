"""The one way in which a capture is made: text -> tokens -> float32 forward -> `kvlab.capture/1`."""

from __future__ import annotations

import json
import platform
import time
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import passages, probes, schema
from .cli import UserError, counted, first_line, note, warn
from .loading import Model

if TYPE_CHECKING:
    from .sink import LayerSink, Modules

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
    gradients: bool = False


def libraries() -> dict[str, str]:
    """Versions that the numbers depend on, as attributes; does not import them."""
    return {"torch": version("torch"), "transformers": version("transformers"), "python": platform.python_version()}


def capture(model: Model, text: Path, request: Request, out: Path, attributes: dict[str, Any]) -> None:
    """Writes `out`, whole or not at all. `attributes` are added to the root's (argv, hash of inputs)."""
    passages.read_text(text)  # a mistake in its name does not wait for the tokenizer
    layers = _layers(model, request.layers)
    taken = passages.cut(text, model.tokenizer, request.cut)
    positions = probes.positions(request.probes, request.cut.tokens)
    if request.gradients and request.cut.tokens < 2:
        raise UserError("gradients need a loss: at least 2 tokens of a passage, not 1")
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and request.cut.tokens > limit:
        warn(f"{request.cut.tokens} tokens are more than the {limit} positions that {model.name} was made for")
    modules = _attention_modules(model, layers)

    from .sink import LayerSink  # imports torch

    with schema.capture_file(out, taken.tokens, positions, request.dtype) as writer:
        writer.set_attributes(_provenance(model, taken, request) | attributes)
        sink = LayerSink(modules, positions, request.keys_before_rope, writer)
        _forward(model, modules, taken.tokens, sink)
        sink.finish(model.name)
        if request.gradients:
            _backward(model, modules, taken.tokens, writer)


def _layers(model: Model, wanted: tuple[int, ...] | None) -> tuple[int, ...]:
    if wanted is None:
        return tuple(range(model.n_layers))
    for layer in wanted:
        if not 0 <= layer < model.n_layers:
            raise UserError(f"{model.name} has layers 0 to {model.n_layers - 1}, but layer {layer} was asked for")
    return wanted


def _attention_modules(model: Model, layers: tuple[int, ...]) -> Modules:
    from . import attention

    modules = attention.find_attention(model.decoder, model.name)
    for layer in layers:
        if layer not in modules:
            has = ",".join(map(str, sorted(modules)))
            raise UserError(f"{model.name}: layer {layer} has no Llama-like attention; --layers {has} have")
    return {layer: modules[layer] for layer in layers}


def _forward(model: Model, modules: Modules, tokens: np.ndarray, sink: LayerSink) -> None:
    """One forward a passage, `tokens` int32 [B, T]; the output matrix is left out, it would need [T, vocabulary]."""
    import torch

    from . import attention

    for passage, row in enumerate(tokens):
        started = time.monotonic()
        ids = torch.from_numpy(row).long()[None].to(model.decoder.device)
        try:
            with torch.inference_mode(), attention.recording(modules, partial(sink.add, passage)):
                model.decoder(input_ids=ids, use_cache=False)
        except (RuntimeError, IndexError) as error:  # out of memory, a tokenizer that is not this model's
            raise UserError(f"{model.name}: the forward failed: {first_line(error)}") from error
        seconds = time.monotonic() - started
        note(f"passage {passage + 1} of {len(tokens)}: {counted(len(modules), 'layer')}, {counted(len(row), 'token')}, {seconds:.1f} s")


def _backward(model: Model, modules: Modules, tokens: np.ndarray, writer: schema.CaptureWriter) -> None:
    """One forward and backward a passage through the whole model."""
    import torch

    from . import gradients

    writer.set_attributes({"loss": gradients.LOSS})
    for passage, row in enumerate(tokens):
        started = time.monotonic()
        ids = torch.from_numpy(row).long()[None].to(model.whole.device)
        try:
            found = gradients.of_passage(model.whole, modules, ids)
        except (RuntimeError, IndexError) as error:  # out of memory
            raise UserError(f"{model.name}: the backward failed: {first_line(error)}") from error
        for layer, pair in found.items():
            writer.add_passage(layer, passage, {name: x.float().cpu().numpy() for name, x in pair.items()})
        note(f"passage {passage + 1} of {len(tokens)}: gradients, {time.monotonic() - started:.1f} s")


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
    theta = {"rope_theta": float(parameters["rope_theta"])}
    plain = scaling.get("rope_type", "default") == "default" and len(scaling) <= 1
    return theta if plain else theta | {"rope_scaling": json.dumps(scaling, sort_keys=True)}
