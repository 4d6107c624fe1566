"""The unchanged inputs as if an editor had made them: what a judge and a metric give to doing nothing."""

from physedit.eval_hooks.files import file_digest, json_line, link_or_copy, open_journal
from physedit.eval_hooks.picabench.edit_task import EditTask, clear_stale, complete, is_done, proven_files, store_input
from physedit.eval_hooks.picabench.folder import INPUTS, OUTPUTS, picture_name
from physedit.eval_hooks.picabench.manifest import read_whole_manifest


def copy_inputs(task: EditTask) -> None:
    """Ensures that ``task.folder`` holds the input of every item as its output too; for one process alone."""
    clear_stale(task)
    proven = proven_files(task)
    pending = [item for item in task.items if not is_done(item, proven)]
    if not pending and read_whole_manifest(task.folder) is not None:
        return
    with open_journal(task.folder / "generated.0.jsonl") as journal:
        for item in pending:
            store_input(task, item)
            source, copy = (f"{part}/{picture_name(item.index)}" for part in (INPUTS, OUTPUTS))
            link_or_copy(task.folder / source, task.folder / copy)
            digest = file_digest(task.folder / source)
            journal.writelines(json_line({"key": task.key, "file": file, "sha256": digest}) for file in (source, copy))
    complete(task)
