"""One run on many processes and machines: its rounds in chunks, done by actors of Ray."""
