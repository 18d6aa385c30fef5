"""Mixup: training on convex combinations of the examples of a minibatch.

Zhang, Cisse, Dauphin, Lopez-Paz: "mixup: Beyond Empirical Risk Minimization", ICLR 2018, arXiv
1710.09412. Here α = 1, so s ~ Beta(1, 1) is uniform on [0, 1), with one draw per minibatch, as in
its code.

    x~ = s x + (1 - s) x[perm] ;  f = s f(x~, y) + (1 - s) f(x~, y[perm])
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tff_algos import random
from tff_algos.client_data import Batch
from tff_algos.model import Forward, Model, ModelError

# Dropout layers are counted from 1 up.
_SHARE, _ORDER = -1, -2


def draws(mask: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws how a minibatch is mixed.

    Args:
      mask: float32 `[batch]`, 1 for a real example.
      seed: int32 `[2]`, that of the step.

    Returns:
      s, float32 scalar, and the position of each example's partner, int32 `[batch]`: a permutation
      of the real examples, which come first.
    """
    share = random.uniform([], random.fold_in(seed, layer=_SHARE))
    places = random.uniform(tf.shape(mask), random.fold_in(seed, layer=_ORDER))
    return share, tf.argsort(places + 2.0 * (1.0 - mask))


def mixed(model: Model) -> Model:
    """Returns a model whose training passes mix their minibatch; other passes are unchanged.

    Training metrics are the same combination of the metrics on both targets. Images of bytes are
    mixed after the model has cropped, flipped and scaled each of them. The code of Zhang et al. and
    Xu et al. (FedCorr) does the same, since its loaders prepare the images.

    Args:
      model: The model; real examples come before padding in its batches.

    Raises:
      ModelError: If inputs are not floating-point numbers, so that they cannot be mixed, and no
        layer converts them.
    """
    if model.forward_on_changed is None and not model.x_spec.dtype.is_floating:
        raise ModelError(
            f"Mixup needs floating-point inputs, not {model.x_spec.dtype.name}, or a layer with "
            "`prepares_inputs` that makes them."
        )

    def forward(weights: Any, batch: Batch, training: bool, seed: tf.Tensor) -> Forward:
        if not training:
            return model.forward(weights, batch, training, seed)
        share, partners = draws(batch.mask, seed)

        def mix(a, b):
            return share * a + (1.0 - share) * b

        def mix_inputs(x):
            return mix(x, tf.gather(x, partners))

        def on_mixed(batch):
            if model.forward_on_changed is None:
                mixed_batch = batch._replace(x=mix_inputs(batch.x))
                return model.forward(weights, mixed_batch, training, seed)
            return model.forward_on_changed(weights, batch, training, seed, mix_inputs)

        own = on_mixed(batch)
        other = on_mixed(batch._replace(y=tf.gather(batch.y, partners)))
        metrics = collections.OrderedDict(
            (name, (mix(values, other.metrics[name][0]), mix(counts, other.metrics[name][1])))
            for name, (values, counts) in own.metrics.items()
        )
        return Forward(mix(own.objective, other.objective), metrics)

    return model._replace(forward=forward)
