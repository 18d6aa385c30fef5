"""One run on many processes and machines: Ray actors process its rounds in chunks."""
