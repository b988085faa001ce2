"""One of everything that makes a process larger on the device: the nine steps, the first matrix product, convolution,
SVD, FFT, and a training step of a small residual network; a mark after each.
"""

import torch
from torch import nn
from torch.nn import functional

from gpumem import mark

GiB = 1 << 30


def zeros(device: str) -> torch.Tensor:
    """A tensor of one GiB."""
    return torch.zeros(GiB // 4, dtype=torch.float32, device=device)


def show(name: str) -> None:
    """A mark once the device has done what it was asked to."""
    torch.cuda.synchronize()
    mark(name)


def run_nine_steps() -> None:
    tiny = torch.zeros(1, device="cuda")
    show("tiny tensor")
    del tiny
    a = zeros("cuda")
    show("1 a on the GPU")
    b = zeros("cuda")
    show("2 b on the GPU")
    b = b.to("cpu")
    show("3 b to the CPU")
    c = zeros("cuda")
    show("4 c on the GPU")
    c = zeros("cuda")
    show("5 c on the GPU again")
    d = zeros("cuda")
    show("6 d on the GPU")
    del d
    show("7 d deleted")
    e = zeros("cpu")
    show("8 e on the CPU")
    e = e.to("cuda")
    show("9 e to the GPU")
    del c, e
    torch.cuda.empty_cache()
    show("cache emptied")
    assert a.numel() == b.numel()


class Block(nn.Module):
    """Two 3x3 convolutions around a residual, projected where the shape changes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)
        self.shortcut = nn.Identity() if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.first_norm(self.first(images)))
        return functional.relu(self.second_norm(self.second(hidden)) + self.shortcut(images))


def make_network() -> nn.Module:
    """Eighteen layers as in ResNet-18: stem, four stages of two blocks, a classifier."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(inside, outside, stride), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def train_once() -> None:
    network = make_network().cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    show("network built")
    images = torch.zeros(32, 3, 224, 224, device="cuda")
    labels = torch.zeros(32, dtype=torch.long, device="cuda")
    functional.cross_entropy(network(images), labels).backward()
    optimizer.step()
    show("network trained")


def main() -> None:
    torch.manual_seed(0)
    torch.cuda.init()
    show("cuda started")
    run_nine_steps()
    square = torch.ones(1024, 1024, device="cuda")
    product = square @ square
    show("first product")
    convolved = functional.conv2d(torch.ones(8, 64, 128, 128, device="cuda"), torch.ones(64, 64, 3, 3, device="cuda"))
    show("first convolution")
    parts = torch.linalg.svd(torch.rand(512, 512, device="cuda"))
    show("first SVD")
    spectrum = torch.fft.fft(torch.ones(1 << 20, device="cuda"))
    show("first FFT")
    del product, convolved, parts, spectrum
    train_once()
    torch.cuda.empty_cache()
    show("end")


if __name__ == "__main__":
    main()
