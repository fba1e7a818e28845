"""Load a pipeline's configuration from its file and the environment, or report every problem found.

A wrong configuration is found before anything runs. The message lists all problems at once, each with its file and
line (or its variable), the value found and the values allowed.

    tree         YAML text → nodes that know their lines
    places       what the schema knows: keys, variables, kinds of values
    environment  TAILRACE_ variables and ${NAME}
    problems     the schema's errors in plain words
    loading      all of it in order: `load`
"""

from __future__ import annotations

from tailrace.config.file.loading import Loaded, load
from tailrace.config.file.places import RESERVED, variables

__all__ = ["RESERVED", "Loaded", "load", "variables"]
