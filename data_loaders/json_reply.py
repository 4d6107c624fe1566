"""The JSON object in a model's reply."""

import json
import re


def last_json_object(text: str) -> dict[str, object] | None:
    """Returns the last JSON object of a reply that may think aloud, fence or explain; None if there is none whole."""
    spoken = re.sub(r"<think>.*?(</think>|\Z)", "", text, flags=re.DOTALL)
    decoder, found, start = json.JSONDecoder(), None, spoken.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(spoken, start)
        except (json.JSONDecodeError, RecursionError):
            end = start + 1
        else:
            found = value if isinstance(value, dict) else found
        start = spoken.find("{", end)
    return found
