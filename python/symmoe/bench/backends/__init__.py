"""The paths and peers that the benchmark knows, one file for each library."""
