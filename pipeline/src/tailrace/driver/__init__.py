"""The driver of a pipeline: look at the source, choose a batch, write its plan, deliver it, report."""
