"""Folders of edits as the contestants of an arena: their items in common, and their accuracies by a judge."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from physedit.eval_hooks.arena.votes import ArenaError
from physedit.eval_hooks.files import DamagedFileError, read_json
from physedit.eval_hooks.picabench.annotations import Reading
from physedit.eval_hooks.picabench.folder import EditedItem, read_meta_info

REPORT_FILE, ANALYSIS_FILE = "report.json", "analysis.json"


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Accuracies from 0 to 1 by model, and the kind of file that they were read from."""

    source: str
    by_model: Mapping[str, float]


def parse_folders(given: Sequence[str]) -> dict[str, Path]:
    """Returns folders by model name from words ``NAME=FOLDER``, or ``FOLDER``, which is named after itself.

    Raises:
        ArenaError: no such folder, or a name that two have.
    """
    folders: dict[str, Path] = {}
    for word in given:
        name, equals, place = word.partition("=")
        path = Path(place) if equals and not Path(word).exists() else Path(word)
        name = name if equals and not Path(word).exists() else path.resolve().name
        if not path.is_dir():
            raise ArenaError(f"{path} is no folder. Give folders of edits, each as FOLDER or NAME=FOLDER.")
        if name in folders:
            names = f"{name}_1={folders[name]} {name}_2={path}"
            raise ArenaError(f"{folders[name]} and {path} are both named {name}. Name them, as {names}.")
        folders[name] = path
    return folders


def common_items(folders: Mapping[str, Path]) -> dict[int, dict[str, EditedItem]]:
    """Returns the items that all folders have edited, by index and model.

    Raises:
        ArenaError: the folders are not edits of one benchmark: an item has another instruction or law in one of them.
        DatasetLayoutError: a folder without ``meta_info.json``.
    """
    of_model = {
        name: {item.index: item for item in read_meta_info(folder, Reading.OFFICIAL)}
        for name, folder in folders.items()
    }
    common = set.intersection(*(set(items) for items in of_model.values()))
    found = {index: {name: items[index] for name, items in of_model.items()} for index in sorted(common)}
    for index, items in found.items():
        told = {name: (item.instruction, item.law) for name, item in items.items()}
        if len(set(told.values())) > 1:
            raise ArenaError(
                f"Item {index} is not the same in all folders: "
                + "; ".join(f"{name}: {instruction!r} ({law})" for name, (instruction, law) in told.items())
                + ". Compare edits of the same items by the same instructions."
            )
    return found


def accuracies_of(folders: Mapping[str, Path]) -> Accuracies:
    """Returns the judged accuracy of every folder, all from the same kind of file.

    ``report.json`` tells the headline accuracy of its own step; ``analysis.json``, the published scripts' file, the
    mean over items.

    Raises:
        ArenaError: there is no kind of file that all folders have, or one tells no accuracy.
        DamagedFileError: a file that is no JSON.
    """
    for source, read in ((REPORT_FILE, _of_report), (ANALYSIS_FILE, _of_analysis)):
        if all((folder / source).exists() for folder in folders.values()):
            return Accuracies(source, {name: read(folder / source) for name, folder in folders.items()})
    there = {name: [f for f in (REPORT_FILE, ANALYSIS_FILE) if (path / f).exists()] for name, path in folders.items()}
    lacking = [f"{name} ({folders[name]}) has {' and '.join(files) or 'neither'}" for name, files in there.items()]
    raise ArenaError(
        f"Accuracies are read from {REPORT_FILE} of all folders, or from {ANALYSIS_FILE} of all, but "
        f"{'; '.join(lacking)}. Judge the folders first."
    )


def _of_report(path: Path) -> float:
    content = read_json(path)
    scores, metrics = content.get("scores"), content.get("metrics")
    if isinstance(metrics, dict) and metrics:
        key = next(iter(metrics))
        score = scores.get(key) if isinstance(scores, dict) else None
        value = score.get("value") if isinstance(score, dict) else metrics[key].get("tuned")
        return _number(value, path, key)
    raise DamagedFileError(f"{path} holds no metrics. Evaluate its folder again.")


def _of_analysis(path: Path) -> float:
    return _number(read_json(path).get("overall_accuracy"), path, "overall_accuracy") / 100.0


def _number(value: object, path: Path, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArenaError(f"{path} tells no accuracy: {key} is {value!r}. Judge the folder first.")
    return float(value)
