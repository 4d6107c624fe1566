"""Sets the weights of Qwen-Image's picture encoder so that it computes the patch code of ``toy.set_encoder``.

The network must compute a linear map in spite of its residual blocks, its attention, its RMS norm and its SiLU:

* a residual block with a zeroed second convolution passes its input on, and so does attention with a zeroed projection;
* the first stride-two convolution moves 2x2 pixels into 12 channels, the second holds the analysis of 2x2 such cells;
* a constant channel of 8192 pins the norm, and its gain makes every component small: silu(e x) = e x / 2 to within
  e x / 2 of itself, so that the SiLU is a fixed scale;
* the last convolution undoes both scales, and the quantising one the pipeline's latent normalisation.

Only the last temporal tap of a causal convolution sees the one frame of a picture.
"""

import torch
from diffusers import AutoencoderKLQwenImage
from torch import Tensor, nn

from physedit.models.toy.set_encoder import CELL_PX, LOG_VARIANCE, PatchComponents, gather_neighbours, pass_on

_PIN = 2.0**13
_SMALL = 2.0**-14
"""e above: components stay below 12, where the SiLU's curvature adds 4e-4 of the value."""


@torch.no_grad()
def set_encoder(autoencoder: AutoencoderKLQwenImage, components: PatchComponents) -> None:
    """Overwrites the encoder's weights so that its normalised posterior mode is the patch code.

    Args:
        autoencoder: two downsamplers, no residual blocks before them, more channels than components.
        components: as many as the autoencoder has latent channels.
    """
    encoder = autoencoder.encoder
    for parameter in encoder.parameters():
        parameter.zero_()
    pass_on(encoder.conv_in.weight[:3, :, -1, 1, 1])
    first, second = (block.resample[1] for block in encoder.down_blocks)
    gather_neighbours(first, num_channels=3)
    _set_code(second, components)
    encoder.norm_out.gamma.fill_(_SMALL * _PIN / encoder.norm_out.scale)
    num_components = len(components.offsets)
    encoder.conv_out.weight[:num_components, :num_components, -1, 1, 1] = torch.eye(num_components) * 2 / _SMALL
    _set_quantiser(autoencoder)
    pass_on(autoencoder.post_quant_conv.weight[:, :, 0, 0, 0])
    autoencoder.post_quant_conv.bias.zero_()


def read_components(autoencoder: AutoencoderKLQwenImage) -> PatchComponents:
    """Returns the patch code that the stored weights compute, after the pipeline's latent normalisation."""
    encoder, quantiser, config = autoencoder.encoder, autoencoder.quant_conv, autoencoder.config
    analysis = encoder.down_blocks[1].resample[1]
    channels = torch.arange(config.z_dim)
    norm_gain = encoder.norm_out.gamma.detach().flatten()[channels] * encoder.norm_out.scale / _PIN
    readout = encoder.conv_out.weight.detach()[channels, channels, -1, 1, 1] / 2
    std, mean = torch.tensor(config.latents_std), torch.tensor(config.latents_mean)
    gains = norm_gain * readout * quantiser.weight.detach()[channels, channels, 0, 0, 0] / std
    taps = analysis.weight.detach()[: config.z_dim, :12, :2, :2].unflatten(1, (2, 2, 3))  # [16, y, x, colour, dy, dx]
    directions = taps.permute(0, 4, 1, 5, 2, 3).flatten(1)
    offsets = analysis.bias.detach()[: config.z_dim] * gains + (quantiser.bias.detach()[: config.z_dim] - mean) / std
    return PatchComponents(directions=directions * gains[:, None], offsets=offsets)


def _set_code(conv: nn.Conv2d, components: PatchComponents) -> None:
    """Lets output channel k hold component k, and the last one the pin."""
    assert conv.bias is not None
    num_components = len(components.offsets)
    halves = components.directions.reshape(num_components, CELL_PX // 2, 2, CELL_PX // 2, 2, 3)  # dy, y, dx, x, colour
    conv.weight[:num_components, :12, :2, :2] = halves.permute(0, 2, 4, 5, 1, 3).flatten(1, 3)
    conv.bias[:num_components] = components.offsets
    conv.bias[-1] = _PIN


def _set_quantiser(autoencoder: AutoencoderKLQwenImage) -> None:
    """Undoes the pipeline's latent normalisation, and makes the posterior a point."""
    quantiser, config = autoencoder.quant_conv, autoencoder.config
    quantiser.weight.zero_()
    std: Tensor = torch.tensor(config.latents_std)
    quantiser.weight[: config.z_dim, : config.z_dim, 0, 0, 0] = torch.diag(std)
    quantiser.bias[: config.z_dim] = torch.tensor(config.latents_mean)
    quantiser.bias[config.z_dim :] = LOG_VARIANCE
