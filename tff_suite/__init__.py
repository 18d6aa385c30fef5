"""What every room may use: the terminal, memory, figures, imports, signals."""
