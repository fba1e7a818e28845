"""New projects: the files that `tailrace init` writes, and the schema by which editors check a pipeline's file."""
