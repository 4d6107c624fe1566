"""Why a video, a stretch of it, or a pair of frames did not come into the set: the names of the counts."""

from enum import StrEnum


class Reason(StrEnum):
    """A reason to drop; the value is its name in ``report.json``."""

    # Whole videos.
    UNREADABLE = "unreadable"
    NO_VIDEO_STREAM = "no_video_stream"
    DAMAGED = "damaged"
    NO_FRAMES = "no_frames"
    TOO_LARGE = "too_large"
    TOO_SMALL = "too_small"
    INTERLACED = "interlaced"
    HDR = "hdr"
    NO_VIDEO_FILE = "no_video_file"
    NO_CAPTION = "no_caption"
    # Stretches between two cuts.
    TOO_SHORT = "too_short"
    CAMERA_MOVES = "camera_moves"
    FLICKER = "flicker"
    TOO_PLAIN = "too_plain"
    CUT_INSIDE = "cut_inside"
    # Pairs of frames.
    BLURRED = "blurred"
    BACKGROUND_MOVES = "background_moves"
    TOO_LITTLE_CHANGE = "too_little_change"
    TOO_MUCH_CHANGE = "too_much_change"
    NEAR_DUPLICATE = "near_duplicate"
    INSTRUCTION_REFUSED = "instruction_refused"
    INSTRUCTION_UNUSABLE = "instruction_unusable"
