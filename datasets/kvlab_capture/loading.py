"""A Hugging Face name, a folder or a GGUF file becomes a tokenizer, a configuration and a float32 model."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from .cli import UserError, counted, first_line, note
from .gguf_once import HeaderCache


@dataclass(frozen=True)
class Source:
    """Where a model comes from: `place` is a hub name or a folder, `gguf` a file name inside it."""

    place: str
    gguf: str | None = None

    @property
    def name(self) -> str:
        """For attributes and messages; a folder's path is not part of it."""
        if self.gguf is not None:
            return Path(self.gguf).stem
        return Path(self.place).resolve().name if self.is_folder else self.place

    @property
    def is_folder(self) -> bool:
        return Path(self.place).is_dir()


def source(model: str | None, gguf: str | None) -> Source:
    """From `--model` and `--gguf`. A GGUF file's own folder is the default model; a relative one may lie in the model's."""
    if gguf is None:
        if model is None:
            raise UserError("name a model: --model NAME_OR_FOLDER, or --gguf FILE")
        if _looks_like_a_path(model) and not Path(model).is_dir():
            raise UserError(f"the model folder {model} does not exist")
        return Source(model)
    if Path(gguf).is_file():
        return Source(str(Path(gguf).parent), Path(gguf).name)
    on_disk = model is not None and (Path(model).is_dir() or _looks_like_a_path(model))
    if model is None or (on_disk and not (Path(model) / gguf).is_file()):
        raise UserError(f"the GGUF file {gguf} does not exist")
    return Source(model, gguf)


def _looks_like_a_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1


class Model:
    """A model, its parts loaded when first asked for: mistakes in a text or a layer number do not wait for the weights."""

    def __init__(self, origin: Source, device: str = "cpu") -> None:
        self.source, self._device = origin, device
        os.environ.setdefault("TQDM_DISABLE", "1")  # before tqdm is imported: the GGUF loader's bar has no other switch

    @property
    def name(self) -> str:
        return self.source.name

    @cached_property
    def config(self) -> Any:
        """The text part's configuration, where a model has several parts."""
        return self._whole_config.get_text_config(decoder=True)

    @cached_property
    def _whole_config(self) -> Any:
        from transformers import AutoConfig

        return self._load(AutoConfig, "configuration")

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return self._load(AutoTokenizer, "tokenizer")

    @property
    def n_layers(self) -> int:
        layers = getattr(self.config, "num_hidden_layers", None)
        if layers is None:
            raise UserError(f"{self.name}: the configuration does not say how many layers there are")
        return layers

    @cached_property
    def decoder(self) -> Any:
        """The decoder without its output matrix, float32, in evaluation mode, ready for `attention.recording`."""
        model = self._recordable
        return self._on_device(model.get_decoder() if hasattr(model, "get_decoder") else model.base_model)

    @cached_property
    def whole(self) -> Any:
        """The decoder with its output matrix, likewise."""
        return self._on_device(self._recordable)

    @cached_property
    def _recordable(self) -> Any:
        from .attention import IMPLEMENTATION

        if getattr(self.config, "attn_logit_softcapping", None) is not None:
            raise UserError(f"{self.name}: attention is not Llama-like: its scores are capped")
        model = self.load_whole()
        try:
            model.set_attn_implementation(IMPLEMENTATION)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"{self.name} cannot be recorded: {first_line(error)}") from error
        return model

    def _on_device(self, module: Any) -> Any:
        try:
            return module.to(self._device).eval()
        except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
            raise UserError(f"{self.name} cannot be set up on {self._device}: {first_line(error)}") from error

    def load_whole(self) -> Any:
        """The model with its output matrix, float32, as transformers has it."""
        import torch
        from transformers import AutoModelForCausalLM

        note(f"loading {self.name}")
        model, report = self._load(
            AutoModelForCausalLM, "model", config=self._whole_config, dtype=torch.float32, output_loading_info=True
        )
        if self.source.gguf is not None:
            self._headers.clear()
        if report["missing_keys"]:
            missing = sorted(report["missing_keys"])
            raise UserError(
                f"{self.name}: the checkpoint lacks {counted(len(missing), 'weight')} of the model, such as {missing[0]}"
            )
        return model

    def identity(self) -> dict[str, str]:
        """Attributes that say which weights these are: a hub commit, or the GGUF file's hash."""
        found: dict[str, str] = {}
        revision = getattr(self.config, "_commit_hash", None)
        if revision:
            found["model_revision"] = revision
        if self.source.gguf is not None:
            found["gguf_file"] = Path(self.source.gguf).name
            path = Path(self.source.place) / self.source.gguf
            if path.is_file():
                found["gguf_sha256"] = file_sha256(path)
        return found

    @cached_property
    def _headers(self) -> HeaderCache:
        return HeaderCache()

    def _load(self, loader: Any, what: str, **options: Any) -> Any:
        _quiet()
        try:
            if self.source.gguf is None:
                return loader.from_pretrained(self.source.place, **options)
            with self._headers.active():
                return loader.from_pretrained(self.source.place, gguf_file=self.source.gguf, **options)
        # transformers reports a bad name, a broken file or a missing package with almost any exception type
        except Exception as error:
            raise UserError(f"cannot load the {what} of {self.name}: {first_line(error)}") from error


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _quiet() -> None:
    """Our own messages are the interface; transformers' warnings and bars would hide them."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
