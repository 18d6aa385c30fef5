"""How this process calls TensorFlow: graphs from many threads, tensors without copies."""
