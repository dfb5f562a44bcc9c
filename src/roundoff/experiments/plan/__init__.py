"""A recipe for a training: measured, proposed, verified by training, and written as TOML."""
