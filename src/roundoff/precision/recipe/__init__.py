"""What a recipe says: its settings, the recipes that have a name, TOML, and which site takes which format."""
