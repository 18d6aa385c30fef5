"""Generated images of the true shape and type for `--use_synthetic_data`; they can be learnt."""

import numpy as np

from tff_suite import memory

_ADVICE = "ask for fewer clients"


def grey_images(num_examples: int, num_classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generates images that each show their class as a blurred pattern, on black, with noise.

    The patterns depend on the class only, so sets with different seeds match.

    Args:
      num_examples: Number of images.
      num_classes: Number of classes; their numbers of images differ by at most one.
      seed: Seed of the order of classes and of the noise.

    Returns:
      Images uint8 `[n, 28, 28, 1]` (0 is black) and labels int32 `[n]`.

    Raises:
      HparamError: If they would not fit into memory.
    """
    # The noise, the patterns and their sum are float64.
    _require_room(num_examples, 28 * 28 * 25)
    # A 7x7 pattern of bright squares for each class, enlarged four times.
    bright = np.random.default_rng(0).random((num_classes, 7, 7)) < 0.4
    patterns = bright.repeat(4, axis=1).repeat(4, axis=2) * 160.0
    rng = np.random.default_rng([1, seed])
    labels = rng.permutation(num_examples) % num_classes
    noise = rng.uniform(0, 95, (num_examples, 28, 28))
    images = (patterns[labels] + noise).astype(np.uint8)
    return images[..., np.newaxis], labels.astype(np.int32)


def _require_room(num_examples: int, bytes_each: int) -> None:
    memory.require(num_examples * bytes_each, f"Making {num_examples:,} images", _ADVICE)


def colour_images(
    num_examples: int, num_classes: int, size: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Generates colour images that each show their class as a coarse pattern with noise.

    Args:
      num_examples: Number of images.
      num_classes: Number of classes; their numbers of images differ by at most one.
      size: Height and width in pixels, a multiple of 8.
      seed: Seed of the order of classes and of the noise; patterns depend on the class only.

    Returns:
      Images uint8 `[n, size, size, 3]` and labels int32 `[n]`.

    Raises:
      HparamError: If they would not fit into memory.
    """
    _require_room(num_examples, 9 * size * size)
    bright = np.random.default_rng(2).random((num_classes, 8, 8, 3)) < 0.4
    patterns = bright.repeat(size // 8, axis=1).repeat(size // 8, axis=2) * np.uint8(160)
    rng = np.random.default_rng([3, seed])
    labels = rng.permutation(num_examples) % num_classes
    noise = rng.integers(0, 96, (num_examples, size, size, 3), np.uint8)
    return patterns[labels] + noise, labels.astype(np.int32)
