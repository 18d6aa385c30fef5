"""Lets `tf.keras.models.load_model` find the suite's layers that have no Keras counterpart.

Just `import tasks.layers.registered`. Keras looks up a saved layer by its class name. Our faster
versions have the names of Keras's layers, so Keras loads its own in their place, with or without
the suite.
"""

import tensorflow as tf

from tasks.layers import images, normalization

LAYERS = (images.PrepareImages, normalization.FixedBatchNormalization)

# Without a package's name, which would be another name in the file.
tf.keras.utils.get_custom_objects().update({layer.__name__: layer for layer in LAYERS})
