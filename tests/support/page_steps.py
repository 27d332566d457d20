"""A page of docs/ as a reader works through it: its blocks of code and its commands, in their order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from support import CHECKOUT

# By its first word a line of a block, or a span of code in a sentence, is known to be a command.
PROGRAMS = {
    *("apt", "apt-get", "bash", "cat", "chmod", "cp", "curl", "docker", "echo", "env", "export", "git", "helm"),
    *("install", "kubectl", "ln", "make", "mkdir", "mount", "nvidia-ctk", "nvidia-smi", "pip", "pipx", "podman"),
    *("python", "python3", "ray", "rm", "sed", "sh", "sudo", "systemctl", "uv", "vgpurun", "wget"),
}
_CODE = re.compile(r"(?m)(?P<block>(?:^ {4}.*\n|^\n(?= {4}))+)|`(?P<span>(?:[^`\n]|\n(?!\n))+)`")
_REMARK = re.compile(r" +# .*")


def text_of_page(name: str, section: str = "") -> str:
    """Return a page of docs/, or what stands below one of its headings."""
    text = (CHECKOUT / "docs" / name).read_text()
    return text.split(f"\n## {section}\n")[1].split("\n## ")[0] if section else text


def blocks(text: str) -> list[str]:
    """Return the blocks of code."""
    return [_block(found["block"]) for found in _CODE.finditer(text) if found["block"]]


def _block(text: str) -> str:
    return re.sub(r"(?m)^ {4}", "", text).strip("\n") + "\n"


class Steps:
    """The steps of a page, each of which is taken once, in its order.

    A step is a command, with the remark behind it, or a block of something else. A command is a line of a block or, in
    a sentence, a span of three words or more; shorter ones are names (`vgpurun run`). `replaced` has those that cannot
    be taken here by their first words, with the reason: next() passes over them.
    """

    def __init__(self, page: str, replaced: Mapping[str, str]) -> None:
        self._left = [*_steps(page)]
        self._replaced = replaced
        self.passed: list[str] = []

    def next(self, *words: str) -> str:
        """Take the next step, which has to have these words in it, and return it."""
        self._pass_over()
        assert self._left, f"the page ends before {words}"
        step = self._left.pop(0)
        assert all(word in step for word in words), f"the page's next step is not {words}: {step}"
        return step

    def end(self) -> None:
        """Check that every step has been taken or passed over, and that nothing is replaced in vain."""
        self._pass_over()
        assert self._left == [], "steps of the page that are not taken"
        assert [words for words in self._replaced if not any(each.startswith(words) for each in self.passed)] == []

    def _pass_over(self) -> None:
        while self._left and self._left[0].startswith(tuple(self._replaced)):
            self.passed.append(self._left.pop(0))


def _steps(text: str) -> Iterator[str]:
    for found in _CODE.finditer(text):
        if span := (found["span"] or "").replace("\n", " "):
            if _is_command(span) and span.count(" ") > 1:
                yield span
            continue
        block = _block(found["block"])
        lines = [line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]
        yield from lines if _is_command(lines[0]) else [block]


def _is_command(text: str) -> bool:
    return text.split()[0] in PROGRAMS


def without_remark(command: str) -> str:
    """Return a command without the remark behind it."""
    return _REMARK.sub("", command)
