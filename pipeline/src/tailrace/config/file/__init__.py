"""From a pipeline's file and the environment to its configuration, or to every problem that stands in the way.

A wrong configuration is met before anything runs, so its message is worth care: each problem has its file and line
(or its variable), what stands there and what may stand there, and all of them come at once.

    tree         YAML text → nodes that know their lines
    shape        what the schema knows: keys, variables, kinds of values
    environment  TAILRACE_ variables and ${NAME}
    words        the schema's errors in plain words
    loading      all of it in order: `load`
"""

from __future__ import annotations

from tailrace.config.file.loading import Loaded, load
from tailrace.config.file.places import RESERVED, variables
from tailrace.config.file.problems import describe

__all__ = ["RESERVED", "Loaded", "describe", "load", "variables"]
