"""ResNet-50 trained for a few steps in bfloat16 autocast with SGD, in plain torch; prints the final loss."""

import argparse

import torch
from torch import nn
from torch.nn import functional

try:
    from gpumem import step
except ImportError:

    def step() -> None:
        """Without gpumem a step's end is nothing."""


STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Channels inside a bottleneck, bottlenecks, stride of the first, for each stage."""


def convolve(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias and its batch norm."""
    padding = kernel // 2
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride=stride, padding=padding, bias=False), nn.BatchNorm2d(outside)
    )


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a residual, projected where the shape changes."""

    def __init__(self, inside: int, channels: int, stride: int) -> None:
        super().__init__()
        self.reduce = convolve(inside, channels, 1)
        self.spread = convolve(channels, channels, 3, stride)
        self.expand = convolve(channels, 4 * channels, 1)
        is_same_shape = stride == 1 and inside == 4 * channels
        self.shortcut = nn.Identity() if is_same_shape else convolve(inside, 4 * channels, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.reduce(images), inplace=True)
        hidden = functional.relu(self.spread(hidden), inplace=True)
        return functional.relu(self.expand(hidden) + self.shortcut(images), inplace=True)


class ResNet50(nn.Module):
    """The stem, four stages of bottlenecks and a classifier.

    The pool's windows do not overlap, so that its backward pass adds in one order only and every run is the same.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolve(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        stages: list[nn.Module] = []
        inside = 64
        for channels, count, stride in STAGES:
            for number in range(count):
                stages.append(Bottleneck(inside, channels, stride if number == 0 else 1))
                inside = 4 * channels
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(inside, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.stages(self.stem(images)).mean(dim=(2, 3)))


def train(steps: int, batch_rows: int, pixels: int, device: str) -> float:
    """The loss after `steps` steps on random images that are the same on every run."""
    torch.manual_seed(0)
    model = ResNet50().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_rows, 3, pixels, pixels, generator=generator)
    labels = torch.randint(1000, (batch_rows,), generator=generator)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch-rows", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=160)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    loss = train(options.steps, options.batch_rows, options.pixels, options.device)
    print(f"loss after {options.steps} steps: {loss:.6f}")


if __name__ == "__main__":
    main()
