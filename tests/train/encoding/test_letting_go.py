"""Encoders that a run needs no more are let go, or wait on the CPU."""

import weakref
from typing import Any

import pytest
import torch
from tests.support.memory_editors import EDITORS, Editor

from physedit.models.flux_kontext import FluxKontext
from physedit.models.loading import modules_of
from physedit.models.parts import EncodersAbsentError
from physedit.train.encode import _let_go


@pytest.mark.parametrize("kinds", [("pictures", "text"), ("pictures",)])
def test_encoders_that_nothing_needs_are_collected(kinds: Any) -> None:
    for build in EDITORS.values():
        editor = build()
        parts = modules_of(editor._pipeline)
        alive = {name: weakref.ref(part) for name, part in parts.items()}
        keys = editor.encoding_key, editor.fingerprint
        del parts
        _let_go(editor, kinds, is_edited=False)
        gone = {name for name, part in alive.items() if part() is None}
        expected = {name for name in alive if name == "vae" or (name.startswith("text") and "text" in kinds)}
        assert gone == expected
        assert (editor.encoding_key, editor.fingerprint) == keys == (build().encoding_key, build().fingerprint)
        with pytest.raises(EncodersAbsentError, match="vae are needed"):
            editor._parts.fetch_vae()


def test_encoders_that_evaluations_need_wait_on_the_cpu_and_edit_the_same(editor: Editor) -> None:
    from tests.support.memory_editors import batch_of, edit

    source = batch_of(3).sources[0]
    other = EDITORS["flux_kontext" if isinstance(editor, FluxKontext) else "qwen_image_edit"]()
    other.to(torch.device("cpu:0"))
    _let_go(other, ("pictures", "text"), is_edited=True)
    assert torch.equal(edit(other, source), edit(editor, source))
