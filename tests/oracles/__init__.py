"""Reference implementations in NumPy float64, written from the papers and not from `tff_algos`."""
