"""How a model computes under a recipe: natively, emulated, or with rounded operands."""
