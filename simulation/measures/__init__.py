"""What is measured of a model: losses, metrics, fairness, bytes."""
