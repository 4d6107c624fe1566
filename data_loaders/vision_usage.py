"""What asking a vision-language model has taken."""

from __future__ import annotations

from dataclasses import dataclass, field

from physedit.data_loaders.vision_settings import VisionSettings


@dataclass(slots=True)
class VisionUsage:
    """What a client has used so far; ``models`` counts the replies by the model's name that the server returned."""

    num_requests: int = 0
    num_retries: int = 0
    num_replies: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    models: dict[str, int] = field(default_factory=dict)

    def cost_usd(self, settings: VisionSettings) -> float:
        """Returns the money spent by the settings' prices; a price that is not given counts as nothing."""
        spent = self.num_input_tokens * (settings.usd_per_million_input or 0.0)
        return (spent + self.num_output_tokens * (settings.usd_per_million_output or 0.0)) / 1e6
