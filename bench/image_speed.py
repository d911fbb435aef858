#!/usr/bin/env python3
"""Decodes and resizes images in one thread, sftrun and Pillow in turn; prints the table of bench/RESULTS.md.

    ninja -C build image_speed && .venv-ref/bin/python bench/image_speed.py build/bin/image_speed [--rounds N] [--turns N] [--photo FILE]

Images of 1024 x 768: slopes and noise, or a file of yours. Decoding ends in RGB pixels; resizing is bicubic, to 448 x 448. The figure of a
program is the best of all rounds.
"""
import argparse
import io
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageOps, features


def picture(width, height):
    """Smooth shapes with some noise, which compress about as photos do."""
    rng = np.random.default_rng(1)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / rng.uniform(20, 200) + rng.uniform(0, 6)) * np.cos(y / rng.uniform(20, 200)) for _ in range(6)]
    channels = [128 + 40 * sum(np.roll(waves, c, 0)[:3]) + rng.normal(0, 4, (height, width)) for c in range(3)]
    return Image.fromarray(np.clip(np.stack(channels, 2), 0, 255).astype(np.uint8))


def files(photo, folder):
    rgb = picture(1024, 768) if photo is None else Image.open(photo).convert("RGB").resize((1024, 768))
    alpha = rgb.copy()
    alpha.putalpha(rgb.getchannel("G"))
    for name, image, options in [
        ("jpeg.jpg", rgb, dict(quality=90)), ("jpeg-progressive.jpg", rgb, dict(quality=90, progressive=True)),
        ("jpeg-grey.jpg", rgb.convert("L"), dict(quality=90)), ("png.png", rgb, {}), ("png-rgba.png", alpha, {}),
        ("png-palette.png", rgb.quantize(256), {}), ("webp.webp", rgb, dict(quality=80)), ("webp-lossless.webp", rgb, dict(lossless=True, method=1)),
    ]:
        image.save(folder / name, **options)
        yield folder / name


def best_ms(rounds, work):
    best = 1e9
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        best = min(best, (time.perf_counter() - begin) * 1000)
    return best


def of_pillow(path, rounds):
    data = path.read_bytes()
    load = lambda: ImageOps.exif_transpose(Image.open(io.BytesIO(data)), in_place=False).convert("RGB")

    def decode():  # without the copies that exif_transpose and convert make of an upright RGB image
        image = Image.open(io.BytesIO(data))
        image.load()
        return image if image.mode == "RGB" else image.convert("RGB")

    image = load()
    return {"decode_ms": best_ms(rounds, decode), "load_ms": best_ms(rounds, load),
            "resize_ms": best_ms(rounds, lambda: image.resize((448, 448), Image.Resampling.BICUBIC))}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("image_speed")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--photo", type=Path)
    arguments = parser.parse_args()
    print(f"Pillow {PIL.__version__} (libjpeg-turbo {features.version('libjpeg_turbo')}, zlib {features.version('zlib')}, "
          f"WebP {features.version('webp')})\n")
    print("| file | decode, ms | Pillow | ratio | Pillow as load_image | ratio | resize, ms | Pillow | ratio |\n|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for path in files(arguments.photo, Path(folder)):
            ours, theirs = [], []
            for _ in range(arguments.turns):
                command = [arguments.image_speed, str(path), "--rounds", str(arguments.rounds)]
                ours.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
                theirs.append(of_pillow(path, arguments.rounds))
            best = lambda runs, key: min(run[key] for run in runs)
            decode, resize = best(ours, "decode_ms"), best(ours, "resize_ms")
            peer, loading, peer_resize = (best(theirs, key) for key in ("decode_ms", "load_ms", "resize_ms"))
            print(f"| {path.name} | {decode:.2f} | {peer:.2f} | {peer / decode:.2f} | {loading:.2f} | {loading / decode:.2f} "
                  f"| {resize:.2f} | {peer_resize:.2f} | {peer_resize / resize:.2f} |")


if __name__ == "__main__":
    main()
