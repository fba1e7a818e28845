"""The driver's side of a pipeline whose batches Tailrace plans itself."""
