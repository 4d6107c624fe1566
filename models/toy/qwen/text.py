"""The tokenizer of the toy Qwen-Image-Edit: a real Qwen2Tokenizer over the words of its template and of the world.

Each word of the pipeline's system turn is one token, as it is for the released model, so that the turn has the 64
tokens that the pipeline cuts off. The class keeps no normaliser when it is loaded, so each word of the world has a
piece for each spelling (lower case, capitalised, upper case; with and without a space before it), and these pieces
are given one embedding (``same_word_rows``). Other text falls apart into bytes, none is lost.
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from transformers import Qwen2Tokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from physedit.models.toy.word_pieces import merge_whole

IMAGE_PAD = "<|image_pad|>"
VIDEO_PAD = "<|video_pad|>"
VISION_START = "<|vision_start|>"
VISION_END = "<|vision_end|>"
END_OF_TEXT = "<|endoftext|>"
_TURN_START = "<|im_start|>"
_TURN_END = "<|im_end|>"
_TURN_TOKENS = (_TURN_START, _TURN_END, VISION_START, VISION_END)
_SPECIAL_TOKENS = (END_OF_TEXT, *_TURN_TOKENS, IMAGE_PAD, VIDEO_PAD)

TEMPLATE = (
    f"{_TURN_START}system\nDescribe the key features of the input image (color, shape, size, texture, objects, "
    "background), then explain how the user's text instruction should alter or modify the image. Generate a new image "
    "that meets the user's requirements while maintaining consistency with the original input where appropriate."
    f"{_TURN_END}\n{_TURN_START}user\n{VISION_START}{IMAGE_PAD}{VISION_END}{{}}{_TURN_END}\n{_TURN_START}assistant\n"
)
"""What the pipeline wraps an instruction in.

Source: huggingface/diffusers 0.42.1, pipelines/qwenimage/pipeline_qwenimage_edit.py, ``prompt_template_encode``.
"""
PREFIX_TOKENS = 64
"""Tokens of the template before ``<|vision_start|>``; the pipeline drops the states of so many."""


def build_tokenizer(vocabulary: Sequence[str]) -> Qwen2Tokenizer:
    """Returns a byte-pair tokenizer whose merges were learnt until each word is one token."""
    words = [*_template_words(), *(_in_bytes(spelling) for word in vocabulary for spelling in spellings(word))]
    merges = merge_whole([list(word) for word in dict.fromkeys(words)])
    pieces = (*sorted(ByteLevel.alphabet()), *(left + right for left, right in merges), *_SPECIAL_TOKENS)
    rows = {piece: row for row, piece in enumerate(dict.fromkeys(pieces))}
    pairs: list[Any] = merges  # annotated as strings, but read as pairs
    return Qwen2Tokenizer(
        vocab=rows,
        merges=pairs,
        extra_special_tokens={
            "image_token": IMAGE_PAD,
            "video_token": VIDEO_PAD,
            "vision_start_token": VISION_START,
            "vision_end_token": VISION_END,
            "turn_start_token": _TURN_START,
            "turn_end_token": _TURN_END,
        },
    )


def spellings(word: str) -> tuple[str, ...]:
    """Returns the distinct spellings of a word; the first, in lower case after a space, is the one that is learnt."""
    cases = (word.lower(), word.capitalize(), word.upper())
    return tuple(dict.fromkeys(space + case for space in (" ", "") for case in cases))


def same_word_rows(tokenizer: Qwen2Tokenizer, vocabulary: Sequence[str]) -> list[tuple[int, int]]:
    """Returns (row of the learnt spelling, row of another spelling) for every other spelling of every word."""
    rows = tokenizer.get_vocab()
    return [
        (rows[_in_bytes(learnt)], rows[_in_bytes(other)])
        for learnt, *others in map(spellings, vocabulary)
        for other in others
    ]


def _template_words() -> list[str]:
    """Returns the template's words in the order they stand, as the byte-level tokenizer splits them."""
    text = TEMPLATE.format("")
    for token in _SPECIAL_TOKENS:
        text = text.replace(token, "\0")
    return [word for part in text.split("\0") for word, _ in _splitter().pre_tokenize_str(part)]


def _splitter() -> PreTokenizer:
    words = Split(Regex(PRETOKENIZE_REGEX), behavior="isolated", invert=False)
    return PreTokenizers([words, ByteLevel(add_prefix_space=False, use_regex=False)])


def _in_bytes(text: str) -> str:
    """Returns the letters that stand for the bytes of a text of printable ASCII letters and spaces."""
    return text.replace(" ", "Ġ")
