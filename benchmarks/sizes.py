"""Prints the table of docs/sizes.md: what common pictures become in each backbone at its released area.

python -m benchmarks.sizes
"""

import argparse

from benchmarks.results import add_json_option, report
from physedit.models.sizes import RELEASED_AREA_PX, kontext_sizes, qwen_size

STORED = ((64, 64), (768, 1024), (1024, 768), (819, 1024), (720, 1280), (1024, 1024), (1500, 1500), (3000, 4000))
"""Height and width."""
VISION_AREA_PX = 384 * 384


def main() -> None:
    """Prints a row per stored size, width first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json_option(parser)
    asked = parser.parse_args()
    print("| stored | Kontext source | Kontext output | Qwen source and output | what the encoder of Plus sees |")
    print("|---|---|---|---|---|")
    for height, width in STORED:
        kontext = kontext_sizes(height, width, area_px=RELEASED_AREA_PX, multiple_px=16)
        qwen = qwen_size(height, width, area_px=RELEASED_AREA_PX)
        seen = qwen_size(height, width, area_px=VISION_AREA_PX)
        print(f"| {' | '.join(map(shown, ((height, width), kontext.source, kontext.output, qwen, seen)))} |")
    report([], asked.json)


def shown(size: tuple[int, int]) -> str:
    """Returns height and width as width x height."""
    return f"{size[1]}x{size[0]}"


if __name__ == "__main__":
    main()
