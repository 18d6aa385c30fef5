"""Makes `tf.keras.models.load_model` know layers of the suite that Keras has no like of.

`import tasks.layers.registered` is all. Keras looks a layer of a file up by the name of its class.
Our faster forms have the names of Keras's layers, as which they are loaded, with or without the
suite.
"""

import tensorflow as tf

from tasks.layers import as_written, images, normalization


class SparseInputDense(as_written.AsWritten, tf.keras.layers.Dense):
    """A plain dense layer: what `sparse_inputs.Dense` was called in files of earlier versions."""


LAYERS = (images.PrepareImages, normalization.FixedBatchNormalization, SparseInputDense)

# Without a package's name, which would be another name in the file.
tf.keras.utils.get_custom_objects().update({layer.__name__: layer for layer in LAYERS})
