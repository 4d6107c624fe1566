"""An image encoder whose weights are set, not trained: a principal component analysis of 4x4 patches.

A learned encoder of this cost loses the colours that instructions need; sixteen principal components of a patch
keep them, are exact arithmetic, and give unchanged pixels unchanged latents.

The network must compute a linear map in spite of its residual blocks, its group norm and its SiLU:

* a residual block with a zeroed second convolution passes its input on (through its 1x1 shortcut where the
  width changes);
* a stride-two convolution with one tap a channel moves 2x2 pixels into channels, twice: 48 channels a cell;
* the last shortcut holds the analysis, and fills each group of the final norm with (x, -x, +K, -K): the mean of
  a group is zero and its variance K^2/2 whatever the picture, so that the norm is a fixed scale;
* silu(x) - silu(-x) = x, so the last convolution subtracts the pair and the SiLU is gone.
"""

from dataclasses import dataclass

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

CELL_PX = 4
_PIN = 512.0
"""K above: large against any component (|x| < 12), so that the norm's scale varies by less than 1e-4."""
LOG_VARIANCE = -20.0
"""The posterior is a point: its sample equals its mode to 5e-5."""


@dataclass(frozen=True, slots=True)
class PatchComponents:
    """A linear code of 4x4 patches.

    Attributes:
        directions: ``[16, 48]`` float32; row k turns a patch in -1..1, ordered (dy, dx, colour), into component k.
        offsets: ``[16]`` float32, added after, so that each component has mean zero over the pictures.
    """

    directions: Tensor
    offsets: Tensor


def analyse_patches(pictures: Tensor, num_components: int) -> PatchComponents:
    """Returns the half-whitened principal components of the pictures' 4x4 patches.

    A component is divided by the fourth root of its variance: fully whitened, faint detail would weigh as much
    as colour; unwhitened, the transformer would not see it. All are then scaled to a mean variance of one.

    Args:
        pictures: ``[N, 3, H, W]`` float32 in -1..1.
        num_components: how many components to keep.
    """
    patches = nn.functional.unfold(pictures, CELL_PX, stride=CELL_PX)  # [N, 3*16, cells], colour first
    patches = patches.transpose(1, 2).reshape(-1, 3, CELL_PX * CELL_PX).transpose(1, 2)
    flat = patches.reshape(patches.shape[0], -1).double()  # [patches, (dy, dx, colour)]
    mean = flat.mean(dim=0)
    variances, vectors = torch.linalg.eigh(torch.cov(flat.T))  # ascending
    variances = variances.flip(0)[:num_components]
    vectors = _fix_signs(vectors.flip(1)[:, :num_components].T)
    gains = variances.pow(-0.25) / variances.sqrt().mean().sqrt()
    directions = vectors * gains[:, None]
    return PatchComponents(directions=directions.float(), offsets=-(directions @ mean).float())


@torch.no_grad()
def set_encoder(autoencoder: AutoencoderKL, components: PatchComponents) -> None:
    """Overwrites the encoder's weights so that its normalised posterior mode is the patch code.

    Args:
        autoencoder: three encoder blocks with one residual layer each, four channels a norm group, no attention.
        components: as many as the autoencoder has latent channels.
    """
    encoder = autoencoder.encoder
    for parameter in encoder.parameters():
        parameter.zero_()
    pass_on(encoder.conv_in.weight[:3, :, 1, 1])
    first, second, last = encoder.down_blocks
    gather_neighbours(first.downsamplers[0].conv, num_channels=3)
    pass_on(second.resnets[0].conv_shortcut.weight[:12, :12, 0, 0])
    gather_neighbours(second.downsamplers[0].conv, num_channels=12)
    _set_code(last.resnets[0].conv_shortcut, components)
    _set_readout(autoencoder)


def read_components(autoencoder: AutoencoderKL) -> PatchComponents:
    """Returns what ``set_encoder`` wrote, as the stored weights have it."""
    shortcut = autoencoder.encoder.down_blocks[-1].resnets[0].conv_shortcut
    directions = torch.empty(shortcut.weight[0::4, :, 0, 0].shape)
    directions[:, _channel_order()] = shortcut.weight.detach()[0::4, :, 0, 0]
    return PatchComponents(directions=directions, offsets=shortcut.bias.detach()[0::4].clone())


def code_of(components: PatchComponents, pictures: Tensor) -> Tensor:
    """Returns ``[N, 16, h, w]``, the code of pictures ``[N, 3, 4h, 4w]`` in -1..1, by its definition.

    It equals the network's normalised posterior mode to 1e-3, at a fiftieth of the cost.
    """
    num_pictures, _, height, width = pictures.shape
    cells = pictures.reshape(num_pictures, 3, height // CELL_PX, CELL_PX, width // CELL_PX, CELL_PX)
    patches = cells.permute(0, 2, 4, 3, 5, 1).flatten(3)  # [N, h, w, (dy, dx, colour)]
    return (patches @ components.directions.T + components.offsets).permute(0, 3, 1, 2)


def _set_code(shortcut: nn.Conv2d, components: PatchComponents) -> None:
    """Fills output channels 4k..4k+3 with component k, its negative, +K and -K."""
    assert shortcut.bias is not None
    directions = components.directions[:, _channel_order()]
    shortcut.weight[0::4, :, 0, 0] = directions
    shortcut.weight[1::4, :, 0, 0] = -directions
    shortcut.bias[0::4] = components.offsets
    shortcut.bias[1::4] = -components.offsets
    shortcut.bias[2::4] = _PIN
    shortcut.bias[3::4] = -_PIN


def _set_readout(autoencoder: AutoencoderKL) -> None:
    """Undoes the norm's scale, subtracts each pair, and undoes the pipeline's latent normalisation."""
    encoder, config = autoencoder.encoder, autoencoder.config
    encoder.conv_norm_out.weight.fill_(_PIN / 2**0.5)
    mean = encoder.conv_out.weight[: config.latent_channels, :, 1, 1]
    mean[:, 0::4] = torch.eye(config.latent_channels) / config.scaling_factor
    mean[:, 1::4] = -torch.eye(config.latent_channels) / config.scaling_factor
    encoder.conv_out.bias[: config.latent_channels] = config.shift_factor
    encoder.conv_out.bias[config.latent_channels :] = LOG_VARIANCE


def pass_on(weight: Tensor) -> None:
    """Makes a matrix send input k to output k and the rest nowhere."""
    weight.copy_(torch.eye(*weight.shape))


def gather_neighbours(conv: nn.Conv2d, num_channels: int) -> None:
    """Sends channel c of the pixel at (dy, dx) of each 2x2 block to output channel (2 dy + dx) num_channels + c."""
    for dy in range(2):
        for dx in range(2):
            first = (2 * dy + dx) * num_channels
            pass_on(conv.weight[first : first + num_channels, :num_channels, dy, dx])


def _channel_order() -> Tensor:
    """Returns, for each of the 48 gathered channels, its place in a patch ordered (dy, dx, colour)."""
    order = [
        ((2 * cell_y + y) * CELL_PX + 2 * cell_x + x) * 3 + colour
        for cell_y in range(2)
        for cell_x in range(2)
        for y in range(2)
        for x in range(2)
        for colour in range(3)
    ]
    return torch.tensor(order)


def _fix_signs(vectors: Tensor) -> Tensor:
    """Makes the largest entry of each row positive, since a component's sign is arbitrary."""
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign()
