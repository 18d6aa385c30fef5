"""The parts of `tff_algos.keras_bridge`."""
