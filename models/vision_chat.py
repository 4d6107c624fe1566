"""Qwen2.5-VL in this process: a picture and texts in, text out, greedily."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn
from transformers import Qwen2_5_VLForConditionalGeneration

from physedit.models.qwen_processor import PictureProcessor
from physedit.models.random_tiny_qwen import build_random_tiny_vision_chat

RANDOM_TINY = "random_tiny"
"""As weights: real classes, seeded random weights, for tests."""


class VisionChat:
    """One model, loaded at its first question. Threads may share it; they are answered one after the other."""

    def __init__(self, weights: str, *, device: str = "auto", dtype: str = "auto") -> None:
        """Names the model; nothing is loaded yet.

        Args:
            weights: a folder or hub id of a Qwen2.5-VL model, or ``random_tiny``.
            device: where it is to lie; ``auto`` is CUDA if there is any.
            dtype: ``auto`` (as stored), ``bfloat16``, ``float16`` or ``float32``.

        Raises:
            ValueError: an unknown dtype.
        """
        if dtype not in ("auto", "bfloat16", "float16", "float32"):
            raise ValueError(f"dtype is {dtype!r}; expected auto, bfloat16, float16 or float32.")
        self.weights, self._dtype = weights, dtype
        self._device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self._loaded: tuple[Qwen2_5_VLForConditionalGeneration, PictureProcessor] | None = None
        self._lock = threading.Lock()

    def reply(self, picture: bytes, texts: Sequence[str], *, is_text_first: bool, max_tokens: int) -> tuple[str, bool]:
        """Returns the model's words about an encoded picture, and whether they were cut at ``max_tokens``.

        Raises:
            ValueError: the weights cannot be loaded.
        """
        said: list[dict[str, str]] = [{"type": "text", "text": text} for text in texts]
        shown: list[dict[str, str]] = [{"type": "image"}]
        turn: Any = {"role": "user", "content": [*said, *shown] if is_text_first else [*shown, *said]}
        with Image.open(io.BytesIO(picture)) as opened:
            image = opened.convert("RGB")
        with self._lock, torch.no_grad():
            self._loaded = self._loaded or self._load()
            model, processor = self._loaded
            prompt = processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False)
            inputs = processor(images=[image], text=[prompt], return_tensors="pt").to(model.device)
            # Stored generation settings may ask for a draw; an answer must not depend on chance.
            tokens = model.generate(
                **inputs, max_new_tokens=max_tokens, do_sample=False, temperature=None, top_p=None, top_k=None
            )
        new = tokens[0, inputs["input_ids"].shape[1] :]
        text = processor.tokenizer.decode(new, skip_special_tokens=True)
        return str(text), len(new) == max_tokens

    def _load(self) -> tuple[Qwen2_5_VLForConditionalGeneration, PictureProcessor]:
        if self.weights == RANDOM_TINY:
            model, processor = build_random_tiny_vision_chat(seed=0)
            return _placed(model, self._device), processor
        dtype = self._dtype if self._dtype == "auto" else getattr(torch, self._dtype)
        where = self.weights if not Path(self.weights).exists() else Path(self.weights)
        try:
            model = Qwen2_5_VLForConditionalGeneration.from_pretrained(where, dtype=dtype)
            processor = PictureProcessor.from_pretrained(where)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"The vision model {self.weights} cannot be loaded: {error}. Give the folder or the hub id of a "
                "Qwen2.5-VL model."
            ) from error
        return _placed(model, self._device), processor


def _placed(model: Qwen2_5_VLForConditionalGeneration, device: str) -> Qwen2_5_VLForConditionalGeneration:
    # The class's own methods are annotated for other types, or not at all.
    return nn.Module.eval(nn.Module.to(model, device))
