"""What a person does next to a pipeline: check, change offsets, send rejected records back, verify."""
