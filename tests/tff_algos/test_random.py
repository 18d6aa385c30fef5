"""Many seeds at once are NumPy's own."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tff_algos import random

WORD = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))


@hypothesis.given(
    given=st.integers(1, 9).flatmap(
        lambda n: st.lists(st.tuples(*[WORD] * n), min_size=1, max_size=4)
    ),
    number=st.integers(1, 20),
)
@hypothesis.settings(deadline=None)
def test_words_and_generators_are_numpys(given, number):
    want = [np.random.SeedSequence(list(seed)).generate_state(number) for seed in given]
    np.testing.assert_array_equal(random.seed_words(given, number), want)
    for generator, seed in zip(random.generators(given), given, strict=True):
        theirs = np.random.default_rng(list(seed))
        np.testing.assert_array_equal(generator.permutation(30), theirs.permutation(30))
        np.testing.assert_array_equal(generator.random(3), theirs.random(3))


@pytest.mark.parametrize("seed", [(2**32, 1), (2**80,), tuple(range(70))])
def test_long_seeds(seed):
    want = np.random.SeedSequence(list(seed)).generate_state(3)
    np.testing.assert_array_equal(random.seed_words([seed, seed], 3), [want, want])


def test_many_words():
    want = np.random.SeedSequence([1, 2]).generate_state(200)
    np.testing.assert_array_equal(random.seed_words([(1, 2)], 200), [want])


def test_refuses_negative_seeds():
    with pytest.raises(ValueError, match="non-negative"):
        random.generators([(1, 2), (1, -2)])
