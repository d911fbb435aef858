"""Video processors of transformers without torchvision: the functions of it that they call, by PyTorch.

`provide()` puts modules with these functions in torchvision's place, before transformers is imported, if torchvision is not installed. Resizing is
torchvision 0.26's for uint8 and bicubic: the kernel of LibTorch that it calls, too. `python torchvision_functions.py FOLDER` compares with the
torchvision in a folder (`pip install --no-deps --target FOLDER torchvision==0.26.0`).
"""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.util
import sys
import types

import torch

VERSION = "0.26.0"


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def resize(image: torch.Tensor, size, interpolation=InterpolationMode.BILINEAR, max_size=None, antialias=True) -> torch.Tensor:
    assert image.dtype == torch.uint8 and interpolation == InterpolationMode.BICUBIC and antialias and max_size is None, interpolation
    *batch, channels, height, width = image.shape
    if (height, width) == tuple(size):
        return image
    flat = image.reshape(-1, channels, height, width)
    return torch.ops.aten._upsample_bicubic2d_aa(flat, list(size), False).reshape(*batch, channels, *size)


def normalize(image: torch.Tensor, mean, std, inplace=False) -> torch.Tensor:
    mean, std = (torch.as_tensor(values, dtype=image.dtype).view(-1, 1, 1) for values in (mean, std))
    return (image - mean) / std


def grayscale_to_rgb(image: torch.Tensor) -> torch.Tensor:
    return image if image.shape[-3] >= 3 else image.repeat_interleave(3, dim=-3)


def pil_to_tensor(picture) -> torch.Tensor:
    import numpy

    return torch.from_numpy(numpy.array(picture)).permute(2, 0, 1)


def module(name: str, **members) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    made.__dict__.update(members)
    sys.modules[name] = made
    if "." in name:
        parent, _, own = name.rpartition(".")
        setattr(sys.modules[parent], own, made)
    return made


def provide() -> None:
    assert "transformers" not in sys.modules, "transformers has looked for torchvision already"
    if importlib.util.find_spec("torchvision"):
        return
    functions = dict(resize=resize, normalize=normalize, grayscale_to_rgb=grayscale_to_rgb, pil_to_tensor=pil_to_tensor, InterpolationMode=InterpolationMode)
    module("torchvision", __version__=VERSION)
    module("torchvision.io")
    module("torchvision.transforms", InterpolationMode=InterpolationMode)
    module("torchvision.transforms.functional", **functions)
    module("torchvision.transforms.v2")
    module("torchvision.transforms.v2.functional", **functions)


def main() -> int:
    sys.path.append(sys.argv[1])
    from torchvision.transforms.v2 import functional as theirs

    torch.manual_seed(1)
    for count in range(500):
        height, width, *size = (int(side) for side in torch.randint(1, 99, (4,)))
        image = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8)
        ours = resize(image, size, InterpolationMode.BICUBIC)
        assert torch.equal(ours, theirs.resize(image, size, theirs.InterpolationMode.BICUBIC, antialias=True)), (height, width, size)
        values = ours.float(), [3.0, 40.0, 99.5], [7.0, 0.3, 255.0]
        assert torch.equal(normalize(*values), theirs.normalize(*values)), count
    print("equal: 500 images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
