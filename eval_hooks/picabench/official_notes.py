"""What a reader must know about the numbers of a judged and measured folder, in sentences.

Above all where the published scripts go wrong without a word, which the official protocol repeats to agree with them.

Source: github.com/Andrew0613/PICABench at 0514acd.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.data_loaders.sample import Box
from physedit.eval_hooks.files import read_json_lines
from physedit.eval_hooks.judges.crops import LONG_SIDE_PX, falls_back
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.folder import EditedItem, read_all_items
from physedit.eval_hooks.picabench.judging import ITEMS_FILE
from physedit.eval_hooks.picabench.measure import MeasuringRules, measured_rows, reading_of

_SHIFTED_SHARE = 0.02
"""Above this difference in proportions boxes count as shifted; the models' own rounding of sizes stays below 0.01."""
_LOSSY_FORMATS = frozenset({"JPEG", "MPO", "WEBP"})
_NO_BOX = Box(0.0, 0.0, 0.0, 0.0)


def notes_of(folder: Path, out: Path | None = None) -> tuple[str, ...]:
    """Returns the sentences about a folder that is judged and measured; those that count nothing are left out.

    Args:
        folder: the pictures, with their ``meta_info.json``.
        out: where answers and measurements lie; None for the folder itself.
    """
    out = out or folder
    rows = measured_rows(out)
    if not rows:
        return ()
    reading = reading_of(out)
    seen = _Seen(
        items=read_all_items(folder, reading),
        measured={row["index"]: row for row in rows},
        answers=read_json_lines(out / ITEMS_FILE, ("index", "number", "verdict", "correct")),
    )
    is_official = reading is Reading.OFFICIAL
    rules = MeasuringRules(str(rows[0]["rules"]))
    notes = [] if rules is MeasuringRules.PLAIN else [_frames(rules), *_shifted_notes(seen)]
    if is_official:
        notes += [*_judged_notes(seen), *_counted_notes(seen)]
    return tuple(notes + _psnr_notes(seen, is_official=is_official))


@dataclass(frozen=True, slots=True)
class _Seen:
    items: Sequence[EditedItem]
    measured: Mapping[object, Mapping[str, object]]
    answers: Sequence[Mapping[str, object]]

    def size_of(self, item: EditedItem, key: str) -> tuple[int, int] | None:
        size = self.measured.get(item.index, {}).get(key)
        return (int(size[0]), int(size[1])) if isinstance(size, list) else None


def _frames(rules: MeasuringRules) -> str:
    official = "the stored input's own pixels, as the published script takes them"
    strict = f"the frame in which the input's long side is {LONG_SIDE_PX} pixels"
    area = official if rules is MeasuringRules.OFFICIAL else strict
    return (
        f"Boxes of questions lie in the frame in which the output's long side is {LONG_SIDE_PX} pixels, edit areas in "
        f"{area}."
    )


def _judged_notes(seen: _Seen) -> list[str]:
    """What the judge was shown that its question does not speak of."""
    present = [item for item in seen.items if item.output_path]
    sizes = {item.index: seen.size_of(item, "judged_size") for item in present}
    unreadable = [item for item in present if sizes[item.index] is None and item.questions]
    asked = {item.index for item in unreadable}
    right = sum(row["correct"] is True for row in seen.answers if row["index"] in asked)
    boxes = [(size, question.box) for item in present if (size := sizes[item.index]) for question in item.questions]
    whole = sum(falls_back(*size, box) for size, box in boxes)
    corners = sum(box == _NO_BOX for _, box in boxes)
    num_questions = sum(len(item.questions) for item in unreadable)
    return _told(
        (
            len(unreadable),
            f"{len(unreadable)} outputs are missing or cannot be read: the published script asks {num_questions} "
            f"questions about a white picture instead, {right} of which count as right.",
        ),
        (
            whole,
            f"{whole} of {len(boxes)} questions have a box that cannot be cropped: the judge was shown the whole "
            "picture without being told.",
        ),
        (
            corners,
            f"{corners} questions have no box: the judge was shown the picture's upper left corner, 20 by 20 pixels of "
            "the frame, enlarged.",
        ),
    )


def _shifted_notes(seen: _Seen) -> list[str]:
    sizes = [(seen.size_of(item, "judged_size"), seen.size_of(item, "input_size")) for item in seen.items]
    shifted = sum(_is_shifted(output, source) for output, source in sizes)
    told = (
        f"{shifted} outputs have other proportions than their input: only the long side is brought to {LONG_SIDE_PX} "
        "pixels, so their boxes show other places than were meant."
    )
    return [told] if shifted else []


def _counted_notes(seen: _Seen) -> list[str]:
    """What counts without being an answer, and what does not count without a word."""
    kinds = Counter(str(row["verdict"]) for row in seen.answers if row["correct"] is False)
    official = [item.official for item in seen.items if item.official is not None]
    without_output = sum(not item.output_path for item in seen.items)
    stale, stale_right = (sum(each.num_stale for each in official), sum(each.num_stale_right for each in official))
    left_out = sum(each.num_left_out for each in official)
    questions = [question for item in seen.items for question in item.questions]
    references = sum(question.answer.strip().rstrip(".").lower() not in ("yes", "no") for question in questions)
    no_answers = kinds["unparsed"] + kinds["refused"]
    return _told(
        (
            kinds["error"],
            f"{kinds['error']} questions whose call failed, or over which the published script stumbles, count as "
            "wrong.",
        ),
        (
            no_answers,
            f"{no_answers} replies without a yes or no count as wrong ({kinds['unparsed']} unparsed, "
            f"{kinds['refused']} refused).",
        ),
        (
            without_output,
            f"{without_output} of {len(seen.items)} items have no output and are absent from every accuracy; the "
            "published PSNR script stops at them with an error, here they have no PSNR.",
        ),
        (references, f"{references} questions have a reference other than yes or no, which hardly any answer equals."),
        (left_out, f"{left_out} pairs lack a question or an answer and are not asked."),
        (
            stale,
            f"{stale} values is_correct of an earlier run lie in pairs that were not asked now; the published analysis "
            f"counts them, {stale_right} as right.",
        ),
    )


def _psnr_notes(seen: _Seen, *, is_official: bool) -> list[str]:
    rows = list(seen.measured.values())
    areas = [item for item in seen.items if item.edit_area]
    foreign = [item for item in areas if (size := seen.size_of(item, "input_size")) and max(size) != LONG_SIDE_PX]
    scaled = sum(row["area_scale"] != 1.0 for row in rows)
    resized = sum(bool(row["was_resized"]) for row in rows)
    undefined = Counter(_reason(row) for row in rows if row["psnr_db"] is None)
    reasons = ", ".join(f"{count} because {reason}" for reason, count in undefined.items())
    notes = _told(
        (
            len(foreign) if is_official else 0,
            f"{len(foreign)} inputs with an edit area have a long side other than {LONG_SIDE_PX} pixels: if their "
            "areas were drawn in that frame, the published script masks the wrong places.",
        ),
        (
            scaled,
            f"{scaled} inputs have a long side other than {LONG_SIDE_PX} pixels: their edit areas were scaled from "
            "that frame to the stored input.",
        ),
        (resized, f"{resized} edited pictures had another size than their input and were scaled for the PSNR."),
        (
            undefined.total(),
            f"The PSNR is not defined for {undefined.total()} of {len(rows)} items and leaves them out: {reasons}.",
        ),
    )
    return [*notes, *_input_notes(rows)]


def _input_notes(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Which of the two inputs, the original or the stored copy, the outputs were compared with."""
    lossy = sum(row["input_format"] in _LOSSY_FORMATS for row in rows)
    known = [value for row in rows if isinstance(value := row["input_to_original_db"], float)]
    if not lossy and not known:
        return []
    told = f"Outputs are compared with the inputs stored in the folder, not with their originals; {lossy} are lossy."
    if not known:
        return [f"{told} Even an unchanged original therefore differs from them, by how much is not known."]
    mean = sum(known) / len(known)
    return [f"{told} {len(known)} of them are known to be {mean:.2f} dB from their originals on the mean."]


def _reason(row: Mapping[str, object]) -> str:
    if row["input_size"] is None:
        return "the input cannot be read"
    if row["output_size"] is None:
        return "the output cannot be read where the path says"
    return str(row["fault"])


def _is_shifted(output: tuple[int, int] | None, source: tuple[int, int] | None) -> bool:
    if output is None or source is None:
        return False
    across, down = output[0] * source[1], output[1] * source[0]
    return abs(across - down) > _SHIFTED_SHARE * max(across, down)


def _told(*counted: tuple[int, str]) -> list[str]:
    return [sentence for count, sentence in counted if count]
