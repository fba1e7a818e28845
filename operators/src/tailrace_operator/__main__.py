"""`python -m tailrace_operator --platform VALUES`: run the operator."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
from pathlib import Path

from tailrace.errors import ConfigInvalid, TailraceError
from tailrace_operator.api import ApiServer
from tailrace_operator.platform import load
from tailrace_operator.process import Operator, run


def main(arguments: list[str]) -> int:
    """Run until a signal; return the exit code."""
    parser = argparse.ArgumentParser(prog="tailrace_operator", description="Run Tailrace's operator.")
    parser.add_argument("--chart", type=Path, required=True, help="the folder of the chart tailrace")
    parser.add_argument("--platform", type=Path, required=True, help="the values that all pipelines share")
    parser.add_argument("--helm", default="helm", help="the program")
    parser.add_argument("--namespace", action="append", default=[], help="one to watch, repeatable; default: all")
    parser.add_argument("--threads", type=int, default=4, help="reconciles at a time")
    parser.add_argument("--port", type=int, default=9780, help="of /metrics; /healthz has the next one; 0: neither")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    for name in ("kopf", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        helm = shutil.which(given.helm)
        if helm is None:
            what = f"the program {given.helm} is not there"
            raise ConfigInvalid(what, kept="nothing was changed", then="install Helm, or say --helm PATH")
        api = ApiServer.around()
        api.require_definitions()
        operator = Operator(load(given.chart, given.platform), helm, api, given.threads)
    except TailraceError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    run(operator, given.namespace, given.port)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
