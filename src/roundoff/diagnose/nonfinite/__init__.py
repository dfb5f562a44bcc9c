"""Rules for NaN and infinity: where they came from, and what they did."""
