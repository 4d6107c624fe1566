"""What examining a video costs, and what its frames cost as JPEG and as PNG.

python -m benchmarks.from_videos VIDEO...
"""

import argparse
import io
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.results import Result, add_json_option, report
from physedit.data_loaders.geometry import as_image
from physedit.data_loaders.videos.choose import ChoiceSettings
from physedit.data_loaders.videos.decode import Frame, read_frames
from physedit.data_loaders.videos.examine import Examination, PairKind, PictureFormat, encode_image, examine
from physedit.data_loaders.videos.sources import find_sources


def main() -> None:
    """Prints one line about each video."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+", metavar="VIDEO")
    add_json_option(parser)
    asked = parser.parse_args()
    results = []
    for video in find_sources(asked.videos, None, "").videos:
        started = time.perf_counter()
        found = examine(Examination(video, PairKind.MOTION, ChoiceSettings(), min_side_px=1))
        took_s = time.perf_counter() - started
        frame = last_of(video.path)
        pairs = [(pair.source_frame, pair.target_frame) for clip in found.clips for pair in clip.pairs]
        print(f"{video.name}: {frame.time_s:.1f} s examined in {took_s:.1f} s, pairs {pairs}; {costs_of(frame)}")
        results.append(Result(f"examining {frame.time_s:.1f} s of {video.name}", took_s, "s"))
    report(results, asked.json)


def last_of(path: Path) -> Frame:
    *_, frame = read_frames(path)
    return frame


def costs_of(frame: Frame) -> str:
    image = as_image(frame.rgb())
    jpeg, png = (encode_image(image, picture_format) for picture_format in (PictureFormat.JPEG, PictureFormat.PNG))
    error = np.asarray(Image.open(io.BytesIO(jpeg)), np.float64) - np.asarray(image)
    psnr = 10 * np.log10(255**2 / np.mean(error**2))
    size = f"{image.width}x{image.height}"
    return f"a frame of {size} takes {len(png) // 1000} kB as PNG, {len(jpeg) // 1000} kB as JPEG at {psnr:.1f} dB"


if __name__ == "__main__":
    main()
