"""The stages of a pipeline whose data stays in Arrow: decode, process and encode from batch to batch, without a JVM."""
