"""Two short trainings to look at with a profile: a convolutional network as ResNet is built, then a transformer.

vgpurun local --mem 8g --sm 50 --profile run -- python examples/profile_training.py
vgpurun report run

Batches come from the host, each loss goes back to it. The last line says as JSON what was copied and computed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

import torch
from torch import nn

IMAGES = (64, 3, 96, 96)
TOKENS = (16, 256)
WORDS = 8192
CLASSES = 100


class Block(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.around = nn.Identity()
        self.through = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.around(x) + self.through(x))


def convolutional() -> nn.Module:
    stages: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.ReLU(inplace=True)]
    for channels in (64, 128, 256):
        stages += [Block(channels), Block(channels), nn.Conv2d(channels, 2 * channels, 1, stride=2)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Embedding(WORDS, 512),
        nn.TransformerEncoder(layer, 6, enable_nested_tensor=False),
        nn.Linear(512, WORDS),
        nn.Flatten(0, 1),
    )


def images() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        yield torch.randn(IMAGES), torch.randint(CLASSES, IMAGES[:1])


def texts() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    while True:
        text = torch.randint(WORDS, TOKENS)
        yield text, text.flatten()


def train(
    make_network: Callable[[], nn.Module], batches: Iterator[tuple[torch.Tensor, torch.Tensor]], steps: int
) -> dict[str, float]:
    """Train for so many steps, and return what was done."""
    network = make_network().cuda()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    copied_bytes, loss_value = 0, 0.0
    for _, (inputs, targets) in zip(range(steps), batches, strict=False):
        copied_bytes += inputs.nbytes + targets.nbytes
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(network(inputs.cuda()), targets.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
    parameter_bytes = sum(parameter.nbytes for parameter in network.parameters())
    return {"steps": steps, "batch_bytes": copied_bytes, "parameter_bytes": parameter_bytes, "loss": loss_value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120, help="training steps of each network (default: %(default)s)")
    steps = parser.parse_args().steps
    if not torch.cuda.is_available():
        raise SystemExit("profile_training.py: PyTorch sees no CUDA device")
    torch.manual_seed(0)
    done = {"convolutional": train(convolutional, images(), steps), "transformer": train(transformer, texts(), steps)}
    print(json.dumps(done))


if __name__ == "__main__":
    main()
