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
        ValueError: the pipeline has no processor folder, or one that is damaged.
    """
    place = folder / PROCESSOR_FOLDER
    if not place.is_dir():
        raise ValueError(
            f"A Qwen-Image-Edit pipeline was to be read from {folder}, but it has no folder {PROCESSOR_FOLDER}. "
            "Download it again, or give the folder of a whole pipeline."
        )
    remedy = "Download the pipeline again, or give the folder of a whole one."
    try:
        processor: PictureProcessor = PictureProcessor.from_pretrained(place)
    # A damaged file shows as anything from OSError to the tokenizers' bare Exception.
    except Exception as error:
        raise ValueError(
            f"The processor in {place} cannot be loaded: {type(error).__name__}: {error}. {remedy}"
        ) from error
    # Without tokenizer_config.json a tokenizer comes up, but fails at the first instruction.
    if processor.tokenizer.pad_token is None:
        raise ValueError(f"The tokenizer in {place} has no token to pad with; see tokenizer_config.json. {remedy}")
    return processor
