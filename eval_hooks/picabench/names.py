"""PICABench's categories, laws and operations as a reader should see them, whatever spelling a file has.

Data and metric keys keep the spelling of the file; only reports use these.

Source: github.com/Andrew0613/PICABench, README (display names); the data set's columns and PhysEditBenchV2 (spellings).
"""

import re
from collections.abc import Callable, Mapping

LAWS = (
    "Light Propagation",
    "Light Source Effects",
    "Reflection",
    "Refraction",
    "Deformation",
    "Causality",
    "Global State Transition",
    "Local State Transition",
)
"""In the order of the paper's tables."""
_LAW_OF = {law.lower(): law for law in LAWS} | {
    "light source effect": "Light Source Effects",
    "light source": "Light Source Effects",
    "global": "Global State Transition",
    "global state": "Global State Transition",
    "global state change": "Global State Transition",
    "local": "Local State Transition",
    "local state": "Local State Transition",
    "local state change": "Local State Transition",
}
_CATEGORY_OF = {
    "optics": "Optics",
    "optical": "Optics",
    "mechanics": "Mechanics",
    "mechanical": "Mechanics",
    "state": "State Transition",
    "state transition": "State Transition",
    "state transitions": "State Transition",
}
_OPERATION_OF = {
    "addition": "add",
    "removal": "remove",
    "delete": "remove",
    "movement": "move",
    "replacement": "replace",
    "colour": "color",
    "color change": "color",
    "others": "other",
}


def law_name(written: str) -> str:
    """Returns a law's display name: ``Light_Propagation`` is Light Propagation, ``Global`` Global State Transition."""
    return _named(written, _LAW_OF)


def category_name(written: str) -> str:
    """Returns a category's display name: ``State`` is State Transition."""
    return _named(written, _CATEGORY_OF)


def operation_name(written: str) -> str:
    """Returns an edit operation's display name, a word in lower case."""
    return _named(written, _OPERATION_OF)


NAME_OF: Mapping[str, Callable[[str], str]] = {
    "law": law_name,
    "category": category_name,
    "operation": operation_name,
}
"""By the word for the group in metric keys and tables; other groups, such as levels, are shown as they are written."""


def _named(written: str, known: Mapping[str, str]) -> str:
    plain = re.sub(r"[\s_-]+", " ", written).strip()
    return known.get(plain.lower(), plain)
