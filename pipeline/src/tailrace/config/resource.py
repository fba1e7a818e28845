"""Where the Pipeline resource is in Kubernetes' API: for the operator, and for the commands that ask it."""

from __future__ import annotations

GROUP = "streaming.tailrace.dev"
VERSION = "v1alpha1"
KIND = "Pipeline"
PLURAL = "tailracepipelines"
OPERATION = "PipelineOperation"
OPERATIONS = "tailraceoperations"
OWNER = f"{GROUP}/pipeline"  # the label of everything that belongs to a Pipeline
DIGEST = f"{GROUP}/digest"  # the label of a ControllerRevision: the revision's name
FAILED = f"{GROUP}/failed"  # its annotation: why the revision is not to run
STABLE = f"{GROUP}/stable"  # its annotation: since when it was seen to work
