"""Qwen2.5-VL's processor for still pictures alone.

The processor of transformers insists on a video processor, and that needs torchvision. Picture editing never shows it
a video, so the one built here has none, and works with and without torchvision on the same files.
"""

from pathlib import Path

from transformers import BaseImageProcessor, PreTrainedTokenizerBase, Qwen2VLProcessor

PROCESSOR_FOLDER = "processor"


class PictureProcessor(Qwen2VLProcessor):
    """A Qwen2VLProcessor that takes pictures and text; given a video it fails for want of a video processor."""

    def __init__(
        self,
        image_processor: BaseImageProcessor,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: str | None = None,
    ) -> None:
        # The base class reads from this signature which parts a processor has, and so expects no video processor.
        super().__init__(image_processor, tokenizer, chat_template=chat_template)  # type: ignore[no-untyped-call]


def load_processor(folder: Path) -> PictureProcessor:
    """Returns the processor of the diffusers pipeline in ``folder``, for ``from_pretrained(folder, processor=...)``.

    Raises:
        ValueError: the pipeline has no processor folder.
    """
    place = folder / PROCESSOR_FOLDER
    if not place.is_dir():
        raise ValueError(
            f"A Qwen-Image-Edit pipeline was to be read from {folder}, but it has no folder {PROCESSOR_FOLDER}. "
            "Download it again, or give the folder of a whole pipeline."
        )
    processor: PictureProcessor = PictureProcessor.from_pretrained(place)
    return processor
