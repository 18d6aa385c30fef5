"""Measurements: losses, metrics, fairness, communication."""
