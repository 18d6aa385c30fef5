"""What every package may use: the terminal, memory, figures, imports, signals."""
