"""Calls to TensorFlow from this process: graphs from many threads, tensors without copies."""
