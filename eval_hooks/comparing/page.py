"""``compare.html``: one file with the numbers, the plots, the pictures and the script that filters them.

It asks for nothing outside itself: plotly.js lies in it, and a content policy forbids every request.
"""

import importlib.util
import json
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from physedit.eval_hooks.comparing.comparison import Comparison, comparison_record
from physedit.eval_hooks.comparing.pictures import MOST_PICTURED_RUNS, picture_rows
from physedit.eval_hooks.comparing.runs import CompareError
from physedit.eval_hooks.comparing.tables import how_tested, runs_table, tests_table

_PACKAGE = "physedit.eval_hooks.comparing"
FLIPS = ("gained", "lost", "both", "unchanged")


def check_page_can_be_made() -> None:
    """Verifies that plotly is installed; imports nothing.

    Raises:
        CompareError: it is not.
    """
    if importlib.util.find_spec("plotly") is None:
        raise CompareError(
            "compare.html needs plotly, which is not installed. Install the extra: pip install 'physedit[compare]', or "
            "leave the page out with --no-page; the tables need nothing more."
        )


def comparison_page(comparison: Comparison, *, per_law: int = 2) -> str:
    """Returns the page.

    Args:
        comparison: what to show.
        per_law: items of each law that are pictured.

    Raises:
        CompareError: plotly is not installed.
    """
    check_page_can_be_made()
    from plotly.offline import get_plotlyjs

    record = comparison_record(comparison)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_text("compare.html.jinja"))
    pictures = {hook.hook: picture_rows(hook, per_law=per_law) for hook in comparison.hooks}
    return template.render(
        comparison=comparison,
        tables={hook.hook: runs_table(comparison, hook) for hook in comparison.hooks},
        tests=tests_table(comparison.tests) if comparison.tests else None,
        how_tested=how_tested(comparison.tests),
        pictures=pictures,
        most_pictured=MOST_PICTURED_RUNS,
        laws=sorted({law for hook in comparison.hooks for law in hook.laws}),
        flips=FLIPS,
        data=_script_json(record),
        plotly_js=Markup(get_plotlyjs().replace("</script", "<\\/script")),
        script=Markup(_text("compare.js")),
    )


def _text(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: dict[str, Any]) -> Markup:
    """JSON that cannot end the script element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
