"""The version, where every module can have it; what else repeats it is in tests/unit/repository/test_version.py."""

import re
from typing import Final

VERSION: Final = "0.2.0.dev0"
# As charts and images need it: 0.2.0.dev0 is 0.2.0-dev.0 there.
SEMANTIC: Final = re.sub(r"\.?(a|b|rc|dev)(\d+)$", r"-\1.\2", VERSION)
# The place of this version's documentation, of which the JSON Schemas' ids are made.
DOCUMENTATION: Final = f"https://tailrace.dev/{SEMANTIC.partition('-')[0]}/"
