"""x."""

from dataclasses import dataclass

from physedit.data_loaders.sample import Box


@dataclass(frozen=True, slots=True)
class Question:
    """q."""

    text: str
    answer: str
    box: Box


def ask(text: str, answer: str, box: Box) -> Question:
    return Question(text, answer, Box(box.x * 16, box.y * 16, box.width * 16, box.height * 16))
