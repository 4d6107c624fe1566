"""The published parquet schemas of PICA-100K and PICABench, and the rows of the embedded world in them.

Source: https://huggingface.co/datasets/Andrew613/PICA-100K and https://huggingface.co/datasets/Andrew613/PICABench.
"""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from physedit.data_loaders.sample import Box
from physedit.data_loaders.scenes.scene import Scene

Row = dict[str, object]
_Feature = dict[str, object]

_STRING: _Feature = {"dtype": "string", "_type": "Value"}
_WHOLE: _Feature = {"dtype": "int64", "_type": "Value"}
_NUMBER: _Feature = {"dtype": "float64", "_type": "Value"}
_PICTURE: _Feature = {"_type": "Image"}

_TRAINING: _Feature = {
    "superficial_prompt": _STRING,
    "intermediate_prompt": _STRING,
    "explicit_prompt": _STRING,
    "law": _STRING,
    "op": _STRING,
    "src_img": _PICTURE,
    "tgt_img": _PICTURE,
}
_BOX: _Feature = {"height": _NUMBER, "width": _NUMBER, "x": _NUMBER, "y": _NUMBER}
_AREA: _Feature = {"x": _NUMBER, "y": _NUMBER, "width": _NUMBER, "height": _NUMBER, "id": _STRING, "order": _WHOLE}
_BENCHMARK: _Feature = {
    "physics_category": _STRING,
    "physics_law": _STRING,
    "edit_operation": _STRING,
    "superficial_prompt": _STRING,
    "intermediate_prompt": _STRING,
    "explicit_prompt": _STRING,
    "annotated_qa_pairs": {"feature": {"question": _STRING, "answer": _STRING, "box": _BOX}, "_type": "List"},
    "edit_area": {"feature": _AREA, "_type": "List"},
    "image_path": _STRING,
    "input_image": _PICTURE,
}
_TARGETS: _Feature = {"index": _WHOLE, "tgt_img": _PICTURE}


def _arrow_type(feature: _Feature) -> pa.DataType:
    kind = feature.get("_type")
    if kind == "Image":
        return pa.struct({"bytes": pa.binary(), "path": pa.string()})
    if kind == "List":
        inner = feature["feature"]
        assert isinstance(inner, dict)
        return pa.list_(_arrow_type(inner))
    if kind == "Value":
        return pa.type_for_alias(str(feature["dtype"]))
    return pa.struct({name: _arrow_type(inner) for name, inner in feature.items() if isinstance(inner, dict)})


def _schema(features: _Feature) -> pa.Schema:
    """An Arrow schema with the metadata by which Hugging Face ``datasets`` decodes its pictures."""
    fields = [pa.field(name, _arrow_type(feature)) for name, feature in features.items() if isinstance(feature, dict)]
    note = json.dumps({"info": {"features": features}})
    return pa.schema(fields, metadata={"huggingface": note})


TRAINING: pa.Schema = _schema(_TRAINING)
"""PICA-100K's seven columns."""

BENCHMARK: pa.Schema = _schema(_BENCHMARK)
"""PICABench's ten columns."""

TARGETS: pa.Schema = _schema(_TARGETS)
"""Row of the benchmark and its physical target."""


def training_row(scene: Scene, target: NDArray[np.uint8]) -> Row:
    """One row of ``TRAINING``: the scene's source with the given target."""
    return {
        "superficial_prompt": scene.superficial_prompt,
        "intermediate_prompt": scene.intermediate_prompt,
        "explicit_prompt": scene.explicit_prompt,
        "law": scene.law,
        "op": scene.operation,
        "src_img": _picture(scene.source, f"{scene.scene_id}.png"),
        "tgt_img": _picture(target, f"{scene.scene_id}-target.png"),
    }


def benchmark_row(scene: Scene) -> Row:
    """One row of ``BENCHMARK``; the scene's targets are not in it."""
    path = f"{scene.scene_id}.png"
    areas = [
        {**_box(area), "id": f"area_{order}", "order": order} for order, area in enumerate(scene.edit_areas, start=1)
    ]
    return {
        "physics_category": scene.category,
        "physics_law": scene.law,
        "edit_operation": scene.operation,
        "superficial_prompt": scene.superficial_prompt,
        "intermediate_prompt": scene.intermediate_prompt,
        "explicit_prompt": scene.explicit_prompt,
        "annotated_qa_pairs": [
            {"question": asked.text, "answer": asked.answer, "box": _box(asked.box)} for asked in scene.questions
        ],
        "edit_area": areas or None,
        "image_path": path,
        "input_image": _picture(scene.source, path),
    }


def target_row(scene: Scene, index: int) -> Row:
    """One row of ``TARGETS``."""
    return {"index": index, "tgt_img": _picture(scene.physical, f"{scene.scene_id}-target.png")}


def _box(box: Box) -> dict[str, object]:
    return {"x": box.x, "y": box.y, "width": box.width, "height": box.height}


def _picture(pixels: NDArray[np.uint8], path: str) -> dict[str, object]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG")
    return {"bytes": buffer.getvalue(), "path": path}
