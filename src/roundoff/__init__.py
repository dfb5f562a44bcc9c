"""roundoff trains neural networks at any numeric precision, and says why when it goes wrong."""
