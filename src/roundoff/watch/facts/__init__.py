"""What a watch writes down about a training besides its numbers: its parts, its data, what ranks agree on."""
