"""Rules for trainings on several ranks: drift, collectives and sharded data."""
