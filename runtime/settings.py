"""Where settings come from, and which wins.

Weakest first: a TOML file (`SNAPLINE_CONFIG`, else `snapline.toml` in the working directory), the process environment
(`SNAPLINE_CONF_...`), Spark conf (`spark.snapline.*`), the API and command line. Every value keeps its origin, so that
`snapline config` can say where it is from.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from snapline.dataflow.config import OPTIONS, Configuration, ConfigurationError, canonical_key, check_key, is_secret

ENVIRONMENT_PREFIX = "SNAPLINE_CONF_"
ORIGIN_PREFIX = "SNAPLINE_ORIGIN_"
"""Before the name of a setting: where the variable of that setting has it from, when a command has set it."""
"""`SNAPLINE_CONF_execution__checkpointing__interval=1s`: two underscores stand for a dot, one for a hyphen."""
SPARK_PREFIX = "spark.snapline."
CONFIG_FILE_VARIABLE = "SNAPLINE_CONFIG"
HANDED_VARIABLE = "SNAPLINE_SECRETS_FD"
"""Names the open file with the secrets of a process that has restarted itself without them."""
CONFIG_FILE = "snapline.toml"


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and where it came from."""

    value: str
    origin: str


def from_toml(path: Path, *, found_here: bool = False) -> dict[str, Setting]:
    """Settings of a TOML file; tables and dotted keys are the same. Raises ConfigurationError naming the file.
    `found_here`: it merely lies in the working directory, and nobody has named it."""
    try:
        with path.open("rb") as file:
            if found_here:
                _check_owner(path, os.fstat(file.fileno()))
            flat = list(_flatten(tomllib.load(file), ""))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigurationError(f"{path} is not valid TOML: tables or arrays within one another without end") from None
    return _once((key, Setting(text_of(value), f"file {path}"), key) for key, value in flat)


def from_environment(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Settings given as `SNAPLINE_CONF_...` variables. Raises ConfigurationError naming the variable."""
    by_spelling = {key.replace(".", "__").replace("-", "_").lower(): key for key in OPTIONS}
    found = []
    for name, value in environment.items():
        if not name.startswith(ENVIRONMENT_PREFIX):
            continue
        spelled = name.removeprefix(ENVIRONMENT_PREFIX)
        key = by_spelling.get(spelled.lower(), spelled.replace("__", ".").replace("_", "-"))
        setting = Setting(value, environment.get(ORIGIN_PREFIX + spelled) or f"environment variable {name}")
        found.append((key, setting, name))
    return _once(found)


def _once(given: Iterable[tuple[str, Setting, str]]) -> dict[str, Setting]:
    """The settings of one place: key, setting, and how the place spells the key. Raises ConfigurationError where it
    says two values of one, since nobody could tell which counts."""
    found: dict[str, Setting] = {}
    spellings: dict[str, tuple[str, str]] = {}
    for key, setting, spelled in given:
        before, value = spellings.setdefault(canonical_key(key), (spelled, setting.value))
        if value != setting.value:
            raise ConfigurationError(
                f"{canonical_key(key)} has two values, as {before} and as {spelled}: leave one out (from {setting.origin})"
            )
        if before == spelled:
            found[key] = setting
    return found


def hand_on(environment: MutableMapping[str, str], key: str, value: str, origin: str) -> None:
    """Put a setting into the environment of a program, in place of what is there under any spelling, with where it is
    really from: an option of the command that runs the program, say.

    >>> environment = {}
    >>> hand_on(environment, "parallelism.default", "2", "--parallelism")
    >>> from_environment(environment)
    {'parallelism.default': Setting(value='2', origin='--parallelism')}
    """
    for name in [name for name in environment if name.startswith(ENVIRONMENT_PREFIX)]:
        if canonical_key(key) in map(canonical_key, from_environment({name: ""})):
            del environment[name]
    spelled = key.replace(".", "__").replace("-", "_")
    environment[ENVIRONMENT_PREFIX + spelled] = value
    environment[ORIGIN_PREFIX + spelled] = origin


def from_spark(conf: Iterable[tuple[str, str]]) -> dict[str, Setting]:
    """Settings among Spark's, prefix `spark.snapline.`."""
    return {
        key.removeprefix(SPARK_PREFIX): Setting(value, f"Spark conf {key}")
        for key, value in conf
        if key.startswith(SPARK_PREFIX)
    }


def from_options(texts: Iterable[str]) -> dict[str, Setting]:
    """Settings given as `-D KEY=VALUE`. Raises ConfigurationError for one without a value."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise ConfigurationError(f"-D {text}: give KEY=VALUE")
        found[key.strip()] = Setting(value.strip(), f"-D {key.strip()}")
    return found


def default_layers(environment: Mapping[str, str]) -> dict[str, Setting]:
    """Return the settings of the file and of the environment, merged."""
    named = environment.get(CONFIG_FILE_VARIABLE, "")
    path = Path(named) if named else Path(CONFIG_FILE)
    layers = from_toml(path, found_here=not named) if named or path.is_file() else {}
    return {**layers, **from_environment(environment)}


def _check_owner(path: Path, found: os.stat_result) -> None:
    """A file that merely lies in the working directory is believed when nobody else can have put it there: it could
    name a coordinator that gets the token. `found`: of the open file, because a name may be given to another one
    meanwhile. Raises ConfigurationError."""
    others = stat.S_IWOTH if found.st_gid == os.getegid() else stat.S_IWOTH | stat.S_IWGRP
    if found.st_uid in (os.geteuid(), 0) and not found.st_mode & others:
        return
    raise ConfigurationError(
        f"{path.absolute()} is not read: user id {found.st_uid} owns it, others may write to it, or both, and it could send "
        f"your token elsewhere; if you trust it, say {CONFIG_FILE_VARIABLE}={path.absolute()}"
    )


def command_line_layers(
    environment: Mapping[str, str], file: Path | None, options: Iterable[str]
) -> list[dict[str, Setting]]:
    """The layers of a process with `--config FILE` and `-D KEY=VALUE`, weakest first. Raises ConfigurationError."""
    of_file = [from_toml(file)] if file else []
    return [default_layers(environment), *of_file, from_options(options)]


def resolve(*layers: Mapping[str, Setting]) -> Configuration:
    """Merge, weakest first. Raises ConfigurationError that also names where the value came from."""
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged.update({canonical_key(key): setting for key, setting in layer.items()})
    for key, setting in merged.items():
        try:
            check_key(key)
            OPTIONS[key].read(setting.value)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (from {setting.origin})") from None
    origins = {key: setting.origin for key, setting in merged.items()}
    return Configuration({key: setting.value for key, setting in merged.items()}, origins)


def text_of(value: object) -> str:
    """A value as settings spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flatten(table: Mapping[str, object], prefix: str) -> Iterable[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def take_secrets(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Take settings that are secret out of the environment, where every function of a user could read them."""
    taken = {
        name: environment[name]
        for name in list(environment)
        if name.startswith(ENVIRONMENT_PREFIX) and any(is_secret(key) for key in from_environment({name: ""}))
    }
    for name in taken:
        del environment[name]
    return taken


def restart_without_secrets(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Return the secrets that this process was started with, in an environment that never had them: taking a variable
    out does not take it out of what the kernel shows as the environment (`/proc/self/environ`), so the process replaces
    itself and hands them over through a pipe. For programs that run functions of users; before anything is open."""
    handed = environment.pop(HANDED_VARIABLE, "")
    if handed:
        with os.fdopen(int(handed), "rb") as pipe:
            return dict(json.loads(pipe.read()))
    taken = take_secrets(environment)
    if not taken:
        return {}
    read_end, write_end = os.pipe()
    os.set_inheritable(read_end, True)
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(json.dumps(taken).encode())
    os.execve(  # noqa: S606 - the same program once more, without a shell
        sys.executable, [sys.executable, *sys.orig_argv[1:]], {**environment, HANDED_VARIABLE: str(read_end)}
    )
    raise AssertionError("execve returned")
