"""The form of the engine's answers, as far as vgpurun reads them. An answer of another form is not understood."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from vgpurun.errors import EngineError

# A type; a list with the form of each entry; or an object's keys, of which those with "?" may be missing or null.
_Form = Any
_CONTAINER = {
    "Id": str, "Name": str, "State": {"Status": str, "StartedAt?": str}, "Created?": str, "Path?": str, "Args?": [str],
    "Config": {"Image?": str, "Labels?": dict, "Env?": [str]}, "Mounts?": [dict], "HostConfig?": dict,
}  # fmt: skip
_LISTED = {
    "Id": str, "Names?": [str], "Labels": dict, "Image?": str, "State?": str, "Status?": str, "Command?": str,
    "Created?": int, "Mounts?": [dict],
}  # fmt: skip
_INFO = {
    "ID?": str, "Runtimes?": dict, "DiscoveredDevices?": [dict], "CDISpecDirs?": [str], "SecurityOptions?": [str],
    "CgroupDriver?": str, "DefaultRuntime?": str,
}  # fmt: skip
# By the path of the question, without the API's version; * is a name, of an image also with slashes.
_FORMS: dict[str, _Form] = {
    "/info": _INFO,
    "/containers/json": [_LISTED],
    "/containers/create": {"Id": str, "Warnings?": [str]},
    "/containers/*/json": _CONTAINER,
    "/containers/*/exec": {"Id": str},
    "/exec/*/json": {"Running": bool, "ExitCode?": int},
    "/images/json": [{"RepoTags?": [str]}],
    "/images/*/json": {"Id": str, "Config?": {"Env?": [str]}, "Os?": str, "Architecture?": str, "Variant?": str},
}
_WORDS = {str: "a text", int: "a number", bool: "true or false", dict: "an object", list: "a list"}


def check(url: str, answer: object) -> None:
    """Raise EngineError for an answer of another form than the one that the question has."""
    path, form = _form_of(url)
    for fault in _faults(answer, form, "the whole") if form else ():
        raise EngineError(
            f"the engine's answer to {path} is not understood: {fault}; is it a Docker Engine? "
            "`docker version` asks it, too"
        )


def has_form(url: str) -> bool:
    """Ask whether the answers to this question are checked."""
    return _form_of(url)[1] is not None


def _form_of(url: str) -> tuple[str, _Form]:
    names = urlsplit(url).path.split("/")[1:]
    if names[0][:1] == "v" and names[0][1:2].isdecimal():
        del names[0]
    path = "/".join(["", *names])
    return path, _FORMS.get(path if len(names) < 3 else f"/{names[0]}/*/{names[-1]}")


def _faults(found: object, form: _Form, name: str) -> Iterator[str]:
    kind = form if isinstance(form, type) else type(form)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        yield f"{name} is not {_WORDS[kind]}"
    elif isinstance(form, list) and isinstance(found, list):
        for each in found:
            yield from _faults(each, form[0], f"an entry of {name}")
    elif isinstance(form, dict) and isinstance(found, dict):
        for key, inner in form.items():
            value = found.get(key.removesuffix("?"))
            if type(value) is not inner and (value is not None or not key.endswith("?")):  # mostly it is right
                yield from _faults(value, inner, key.removesuffix("?"))
