"""What a good model says when it is asked for an instruction."""

import json

from tests.support.judge_server import Reply

GOOD = json.dumps(
    {
        "superficial": "Roll the ball to the right.",
        "intermediate": "Roll the ball to the right along the wall, with its shadow below it.",
        "explicit": "Roll the red ball to the right along the wall; where it was, the tiles show again.",
        "law": "Causality",
        "operation": "move",
    }
)
FINE = Reply(text=GOOD)
