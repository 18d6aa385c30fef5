"""Files that data sets come in, and how they are read."""
