"""The two tokenizers of the toy editor: real classes over the few words of the embedded world.

Every word of the vocabulary is one token; any other word falls apart into letters, so that every prompt can be
read. Both are blind to case. The CLIP tokenizer lower-cases; the T5 tokenizer's class keeps no normaliser when it is
loaded, so it has a piece for each spelling of a word, with or without a full stop or comma, and these pieces are
given one embedding (``same_word_rows``). Folding the punctuation in also keeps the longest prompt of the scenes, 21
words, within the 24 tokens that the transformer sees.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import CLIPTokenizer, T5Tokenizer

T5_TOKENS = 24
"""Length of the text the transformer attends to: 21 words, an end, two to spare."""
CLIP_TOKENS = 32
"""Length of the text that is pooled; here punctuation counts."""

CLIP_START = "<|startoftext|>"
CLIP_END = "<|endoftext|>"

_LETTERS = tuple("abcdefghijklmnopqrstuvwxyz0123456789.,'-!?:;")
_ENDINGS = ("", ".", ",")
_END_OF_WORD = "</w>"
_WORD_START = "▁"
_WORD_SCORE = -1.0
_LETTER_SCORE = -10.0


def build_clip_tokenizer(vocabulary: Sequence[str]) -> CLIPTokenizer:
    """Returns a byte-pair tokenizer whose merges were learnt until each word is one token."""
    merges = learn_merges(vocabulary)
    pieces = [*_LETTERS, *(letter + _END_OF_WORD for letter in _LETTERS), *(left + right for left, right in merges)]
    rows = {piece: row for row, piece in enumerate(dict.fromkeys((*pieces, CLIP_START, CLIP_END)))}
    pairs: list[Any] = merges  # annotated as strings, but read as pairs
    return CLIPTokenizer(vocab=rows, merges=pairs, model_max_length=CLIP_TOKENS)


def learn_merges(words: Sequence[str]) -> list[tuple[str, str]]:
    """Returns the byte-pair merges that make each word one piece: most frequent pair first, ties by the alphabet.

    The tokenizers library has a trainer, but its ties fall differently from run to run.
    """
    return merge_whole([[*word[:-1], word[-1] + _END_OF_WORD] for word in words])


def merge_whole(words: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Returns the merges that make each word, given by its pieces, one piece."""
    spelt = [list(pieces) for pieces in words]
    merges: list[tuple[str, str]] = []
    while counts := Counter(pair for pieces in spelt for pair in pairwise(pieces)):
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        spelt = [_merge(pieces, best) for pieces in spelt]
    return merges


def _merge(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Returns the pieces with each occurrence of the pair joined, from left to right."""
    merged: list[str] = []
    for piece in pieces:
        if merged and (merged[-1], piece) == pair:
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def build_t5_tokenizer(vocabulary: Sequence[str]) -> T5Tokenizer:
    """Returns a unigram tokenizer with a piece for each spelling of each word and for each letter."""
    scores = dict.fromkeys(("<pad>", "</s>", "<unk>"), 0.0)
    for word in vocabulary:
        scores.update({_WORD_START + spelling: _WORD_SCORE for spelling in spellings(word)})
    scores[_WORD_START] = _LETTER_SCORE
    scores.update(dict.fromkeys(_LETTERS, _LETTER_SCORE))
    scores.update({letter.upper(): _LETTER_SCORE for letter in _LETTERS})
    return T5Tokenizer(vocab=list(scores.items()), extra_ids=0, model_max_length=T5_TOKENS)


def spellings(word: str) -> tuple[str, ...]:
    """Returns the distinct spellings of a word: bare and in lower case first, then capitalised and punctuated."""
    cases = (word.lower(), word.capitalize(), word.upper())
    return tuple(dict.fromkeys(case + ending for ending in _ENDINGS for case in cases))


def same_word_rows(tokenizer: T5Tokenizer, vocabulary: Sequence[str]) -> list[tuple[int, int]]:
    """Returns (embedding row of the bare word, row of another spelling) for every other spelling of every word."""
    rows = tokenizer.get_vocab()
    return [
        (rows[_WORD_START + bare], rows[_WORD_START + other])
        for bare, *others in map(spellings, vocabulary)
        for other in others
    ]


def bare_words(prompt: str) -> str:
    """Returns the prompt as training reads it: lower case, no full stops or commas."""
    return prompt.lower().replace(".", "").replace(",", "")
