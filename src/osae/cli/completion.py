"""Shell completion, derived from the commands and their options.

The scripts that `osae completion` prints call `osae __complete WORDS`, which prints one suggestion per line:
the word, a tab, and its meaning. If there are no suggestions, the shell completes file names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import assert_never

from osae.cli.command import Command, Group
from osae.cli.parsing import ALWAYS
from osae.options import Option, list_options

ASK = "__complete"
Offers = dict[str, str]  # word -> meaning

BASH = f"""_osae() {{
  local IFS=$'\n'
  COMPREPLY=($(osae {ASK} "${{COMP_WORDS[@]:1:COMP_CWORD}}" 2>/dev/null | cut -f1))
}}
complete -o default -o bashdefault -F _osae osae
"""
ZSH = f"""#compdef osae
_osae() {{
  local -a offers
  local line
  for line in ${{(f)"$(osae {ASK} "${{(@)words[2,CURRENT]}}" 2>/dev/null)"}}; do
    offers+=("${{${{line%%$'\\t'*}}//:/\\\\:}}:${{line#*$'\\t'}}")
  done
  if (( ${{#offers}} )); then
    _describe osae offers
  else
    _files
  fi
}}
compdef _osae osae
"""
FISH = f"""function __osae_complete
  set -l words (commandline -opc) (commandline -ct)
  set -l offers (osae {ASK} $words[2..-1] 2>/dev/null)
  if set -q offers[1]
    printf '%s\\n' $offers
  else
    __fish_complete_path $words[-1]
  end
end
complete -c osae -f -a '(__osae_complete)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def offer(commands: Mapping[str, Command | Group], words: Sequence[str]) -> Offers:
    """Return the completions of the last word, which is partly typed."""
    *before, last = words or [""]
    if last == "=":  # bash splits "--to=saelens" into three words
        last = ""
    elif before and before[-1] == "=":
        before = before[:-1]
    if last.startswith("--") and "=" in last:
        flag, _, last = last.partition("=")
        return {f"{flag}={word}": meaning for word, meaning in offer(commands, [*before, flag, last]).items()}
    found = _find_offers(commands, before, last) | ({} if before else {"--version": ""})
    return {word: meaning for word, meaning in found.items() if word.startswith(last)}


def _find_offers(commands: Mapping[str, Command | Group], before: Sequence[str], last: str) -> Offers:
    if not before:
        return {name: command.help for name, command in commands.items()} | {"--help": ""}
    match commands.get(before[0]):
        case Group() as group:
            return _find_offers(group.find(), before[1:], last)
        case Command() as command:
            return _offer_arguments(command, before[1:], last)
        case None:
            return {}
        case other:
            assert_never(other)


def _offer_arguments(command: Command, before: Sequence[str], last: str) -> Offers:
    """Return the options, the values of the preceding option, or the values of an argument."""
    options = list_options(command.options)
    by_flag = {option.flag: option for option in options if not option.positional}
    if before and before[-1] in by_flag and not by_flag[before[-1]].is_switch:
        return _offer_values(by_flag[before[-1]], last)
    if last.startswith("-"):
        return _offer_flags(by_flag, before)
    positional = [option for option in options if option.positional]
    return _offer_values(positional[0], last) if positional and not before else {}


def _offer_flags(by_flag: Mapping[str, Option], before: Iterable[str]) -> Offers:
    """Return the options that are not given yet or can be repeated."""
    given = {flag for flag in before if flag in by_flag and by_flag[flag].entries != "repeated"}
    own = {flag: option.help for flag, option in by_flag.items() if flag not in given}
    return own | dict.fromkeys(ALWAYS, "")


def _offer_values(option: Option, last: str) -> Offers:
    """Return the values of an option that has a few.

    In a comma-separated list, append them to those given.
    """
    head, comma, _ = last.rpartition(",") if option.is_tuple and option.entries == "commas" else ("", "", "")
    taken = head.split(",")
    return {f"{head}{comma}{value}": "" for value in option.allowed if value not in taken}
