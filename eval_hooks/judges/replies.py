"""What a judge's reply means: the published evaluator's rules with all their quirks, and strict ones.

Source of the published rules: github.com/Andrew0613/PICABench at 0514acd, PicaEval_gpt.py and PicaEval_qwen.py.
"""

from __future__ import annotations

import json
import re

from physedit.eval_hooks.judges.judge import Verdict, VerdictKind

_FLAT_OBJECT = re.compile(r"\{[^{}]*\"answer\"[^{}]*\"explanation\"[^{}]*\}", re.IGNORECASE | re.DOTALL)
_OFFICIAL_WORDS = {"yes": "Yes", "y": "Yes", "true": "Yes", "no": "No", "n": "No", "false": "No"}
_EMPTY_REPLY = "Unknown"
_NUM_KEPT_CHARACTERS = 10


def official_verdict(text: str) -> Verdict:
    """Returns what the published evaluator makes of a reply; ``answer`` is its ``model_answer``.

    It looks for JSON from the first brace to the last, then for flat objects with answer and explanation, and takes the
    first that has both as text. Else the reply's beginning decides, then the word yes anywhere, then the word no.
    "Not sure" is a No, and a boolean answer is neither.
    """
    found = _official_json(text.strip())
    answer, explanation = found if found else (_official_words(text), "")
    return Verdict(kind=_kind_of(answer), raw=text, explanation=explanation, answer=answer)


def _official_json(text: str) -> tuple[str, str] | None:
    start, end = text.find("{"), text.rfind("}") + 1
    candidates = [text[start:end]] if start != -1 and end > start else []
    for candidate in [*candidates, *_FLAT_OBJECT.findall(text)]:
        try:
            record = json.loads(candidate)
        except json.JSONDecodeError:
            continue
        except (RecursionError, ValueError):  # too deep, or a number of too many digits: the evaluator gives up on JSON
            return None
        answer, explanation = record.get("answer", ""), record.get("explanation", "")
        if not isinstance(answer, str) or not isinstance(explanation, str):
            return None
        if answer.strip():
            word = answer.lower().strip().rstrip(".")
            return _OFFICIAL_WORDS.get(word, answer.strip()), explanation.strip()
    return None


def _official_words(text: str) -> str:
    lower = text.lower().strip()
    for word in ("yes", "no"):
        if lower.startswith(word):
            return word.capitalize()
    for word in ("yes", "no"):
        if re.search(rf"\b{word}\b", lower):
            return word.capitalize()
    return text[:_NUM_KEPT_CHARACTERS] if text else _EMPTY_REPLY


def official_equal(answer: str, reference: str) -> bool:
    """Tells whether the published evaluator counts ``answer`` as right: equal but for case, margins and final dots."""
    return _bare(answer) == _bare(reference)


def _bare(text: str) -> str:
    return text.lower().strip().rstrip(".")


def _kind_of(answer: str) -> VerdictKind:
    return {"Yes": VerdictKind.YES, "No": VerdictKind.NO}.get(answer, VerdictKind.UNPARSED)


_CLOSED_THOUGHT = re.compile(r"^.*</think(?:ing)?>", re.IGNORECASE | re.DOTALL)
_OPEN_THOUGHT = re.compile(r"<think(?:ing)?>.*$", re.IGNORECASE | re.DOTALL)
_ANSWER_KEY = re.compile(r"\{\s*\"", re.DOTALL)
_MARKUP = re.compile(r"[*_`\"'#]+")
_CLAUSE = re.compile(
    r"(?:^|[,.;:!?\n(]|\b(?:answer|verdict)\s+is|\b(?:actually|so))\s*(yes|no)\s*(?=$|[,.;:!?\n)])", re.IGNORECASE
)


def strict_verdict(text: str) -> Verdict:
    """Returns the last explicit yes or no of a reply, ``unparsed`` where there is none.

    Thinking parts are left out. Where the reply holds JSON, only the field ``answer`` of the last whole object that has
    it counts, and JSON that is cut off counts as nothing. Else a yes or no counts that is a clause of its own, or that
    is said to be the answer; words inside a sentence do not.
    """
    said = _OPEN_THOUGHT.sub("", _CLOSED_THOUGHT.sub("", text)).strip()
    if _ANSWER_KEY.search(said):
        record = _last_answer(said)
        kind = VerdictKind.UNPARSED if record is None else _strict_kind(record["answer"])
        explanation = "" if record is None else record.get("explanation")
        return Verdict(kind, text, explanation if isinstance(explanation, str) else "", _word_of(kind))
    kind = _strict_kind(said)
    return Verdict(kind, text, "", _word_of(kind))


def _last_answer(text: str) -> dict[str, object] | None:
    decoder = json.JSONDecoder()
    found, position = None, text.find("{")
    while position != -1:
        try:
            record, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            end = position + 1
        else:
            found = record if "answer" in record else found
        position = text.find("{", end)
    return found


def _strict_kind(answer: object) -> VerdictKind:
    if isinstance(answer, bool):
        return VerdictKind.YES if answer else VerdictKind.NO
    if not isinstance(answer, str):
        return VerdictKind.UNPARSED
    clauses = _CLAUSE.findall(_MARKUP.sub("", answer).strip())
    return VerdictKind(clauses[-1].lower()) if clauses else VerdictKind.UNPARSED


def _word_of(kind: VerdictKind) -> str:
    return kind.value.capitalize() if kind in (VerdictKind.YES, VerdictKind.NO) else ""
