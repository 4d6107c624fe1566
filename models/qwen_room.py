"""Which instructions a Qwen-Image-Edit takes, told without its weights: those that ``QwenImageEdit`` encodes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from physedit.data_loaders.problems import RowProblem
from physedit.data_loaders.text_limits import TextRefusal
from physedit.models.qwen_pipeline import MAX_SOURCES, EditPipeline, pipeline_class
from physedit.models.qwen_text import POSITIONS
from physedit.models.sizes import qwen_size

if TYPE_CHECKING:
    from transformers import Qwen2VLProcessor

_PICTURE = "Picture {}: <|vision_start|><|image_pad|><|vision_end|>"
"""Source: QwenImageEditPlusPipeline._get_qwen_prompt_embeds, diffusers."""
_MOST_TOKENS_A_BYTE = 3
"""A token has a byte or more, and bringing text to its normal form makes at most three bytes of one."""


class QwenTextRule:
    """A ``TextRule``: no words that stand for pictures, and a position for every token."""

    def __init__(
        self, pipeline: EditPipeline, processor: "Qwen2VLProcessor", *, area_px: int, seen_px: int, token_px: int
    ) -> None:
        """Reads the pipeline's template; loads nothing.

        Args:
            pipeline: the class.
            processor: its own.
            area_px: the area that pictures are worked at.
            seen_px: the area that the text encoder sees a picture at.
            token_px: pixels a side of a token of the transformer.
        """
        parts = ("scheduler", "vae", "text_encoder", "tokenizer", "transformer")
        bare: Any = pipeline_class(pipeline)(**dict.fromkeys(parts), processor=processor)
        self._template: str = bare.prompt_template_encode
        self._num_dropped = int(bare.prompt_template_encode_start_idx)
        self._names_pictures = MAX_SOURCES[pipeline] > 1
        self._processor: Any = processor  # its tokenizer and image processor have no types
        self._area_px, self._seen_px, self._token_px = area_px, seen_px, token_px
        self._of_template = [self._count(number, "") for number in range(1, MAX_SOURCES[pipeline] + 1)]

    def __call__(self, sizes: Sequence[tuple[int, int]], instruction: str) -> TextRefusal | None:
        """Returns why the instruction cannot be taken; see ``TextRule``.

        Raises:
            PictureSizeError: a picture is too long and narrow.
        """
        for word in (self._processor.image_token, self._processor.video_token):
            if word in instruction:
                return TextRefusal(
                    RowProblem.TEMPLATE_WORDS,
                    f"holds {word}, which the editor's template has for pictures. Take it out, or drop the row.",
                )
        longest_side = max(max(qwen_size(*size, area_px=self._area_px)) for size in sizes) // self._token_px
        room = POSITIONS - longest_side // 2
        of_pictures = sum(self._picture_tokens(size) for size in sizes)
        most_of_text = _MOST_TOKENS_A_BYTE * len(instruction.encode())
        if of_pictures + self._of_template[len(sizes) - 1] + most_of_text <= room:
            return None
        num_tokens = of_pictures + self._count(len(sizes), instruction)
        if num_tokens <= room:
            return None
        return TextRefusal(
            RowProblem.PROMPT_TOO_LONG,
            f"and its pictures make {num_tokens} tokens, but the transformer has positions for {room} at this size of "
            "picture. Shorten it, or drop the row.",
        )

    def _picture_tokens(self, size: tuple[int, int]) -> int:
        """Returns the tokens that a stored picture adds to the one that stands for it in the template."""
        images = self._processor.image_processor
        patches = int(images.get_number_of_image_patches(*qwen_size(*size, area_px=self._seen_px)))
        return patches // int(images.merge_size) ** 2 - 1

    def _count(self, num_pictures: int, instruction: str) -> int:
        """Returns the tokens whose states are kept, with one for each picture."""
        named = "".join(_PICTURE.format(number + 1) for number in range(num_pictures)) if self._names_pictures else ""
        text = self._template.format(named + instruction)
        return len(self._processor.tokenizer(text, verbose=False).input_ids) - self._num_dropped
