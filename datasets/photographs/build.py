"""Build this folder's photographs from those that scikit-image 0.26.0 and scikit-learn 1.9.1 carry.

    pip install scikit-image==0.26.0 scikit-learn==1.9.1 pillow==13.0.0
    python build.py

Another Pillow may write other bytes for the same pixels; then the checksums in card.toml are another's too.
"""

from importlib.util import find_spec
from pathlib import Path

from PIL import Image

LONGEST_SIDE, QUALITY = 320, 90
ORIGINALS = {
    "brick": "skimage/data/brick.png",
    "cat": "skimage/data/chelsea.png",
    "clock": "skimage/data/clock_motion.png",
    "coffee": "skimage/data/coffee.png",
    "flower": "sklearn/datasets/images/flower.jpg",
    "retina": "skimage/data/retina.jpg",
    "rocket": "skimage/data/rocket.jpg",
    "temple": "sklearn/datasets/images/china.jpg",
}


def original(place: str) -> Path:
    """Where an installed package keeps the original."""
    package, _, rest = place.partition("/")
    return Path(find_spec(package).origin).parent / rest


def main() -> None:
    for name, place in ORIGINALS.items():
        with Image.open(original(place)) as image:
            small = image.convert("RGB")
        small.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.LANCZOS)
        small.save(Path(__file__).with_name(f"{name}.jpg"), quality=QUALITY, subsampling=0)


if __name__ == "__main__":
    main()
