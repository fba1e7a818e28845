"""`tailrace completion SHELL`: the script that lets a shell complete commands, options and their values.

The framework's own option would edit the user's startup files. This only prints; all three scripts ask `tailrace`
itself in the same way, so new commands and those of other packages are completed too. Files are left to the shell.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from tailrace.cli.terminal import note, say

BASH = """\
_tailrace() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS="$(IFS=' '; echo "${COMP_WORDS[*]}")" COMP_CWORD=$COMP_CWORD \\
        _TAILRACE_COMPLETE=complete_bash "$1" 2>/dev/null))
}
complete -o bashdefault -o default -F _tailrace tailrace"""
ZSH = """\
#compdef tailrace
_tailrace() {
    local -a found
    found=("${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT - 1)) \\
        _TAILRACE_COMPLETE=complete_bash "${words[1]}" 2>/dev/null)}")
    if [[ -n "${found[*]}" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _tailrace tailrace"""
FISH = """\
function __tailrace_complete
    set -lx COMP_WORDS (string join ' ' -- (commandline -opc) (commandline -ct))
    set -lx COMP_CWORD (count (commandline -opc))
    set -lx _TAILRACE_COMPLETE complete_bash
    tailrace 2>/dev/null
end
complete -c tailrace -a '(__tailrace_complete)'"""


class Shell(StrEnum):
    """A shell that can complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# What a user's startup file runs, and which file that is.
_LOADING = {
    Shell.BASH: ("source <(tailrace completion bash)", "~/.bashrc"),
    Shell.ZSH: ("source <(tailrace completion zsh)", "~/.zshrc, after compinit"),
    Shell.FISH: ("tailrace completion fish | source", "~/.config/fish/config.fish"),
}
_SCRIPTS = {Shell.BASH: BASH, Shell.ZSH: ZSH, Shell.FISH: FISH}


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", metavar="SHELL")]) -> None:
    """Print the script that completes commands, options and values in bash, zsh or fish."""
    say(_SCRIPTS[shell])
    line, file = _LOADING[shell]
    note(f"next: put `{line}` into {file}")
