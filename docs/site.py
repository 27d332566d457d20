"""Makes pages of the files outside docs/ that belong to the site, and mends the links between both.

README is the site's first page. A link to a file that is no page becomes its name, for the site has no sources.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from vgpurun import __version__

_CHECKOUT = Path(__file__).resolve().parent.parent
_PAGES = (
    "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "lib/sim/README.md", "examples/README.md",
    "examples/report/README.md",
)  # fmt: skip
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
_PICTURE = re.compile(r'<picture>.*?<img alt="([^"]*)" src="docs/([^"]*)-light.svg">\s*</picture>', re.DOTALL)
_IN_BOTH = (
    r"![\1](\2-light.svg#only-light) ![\1](\2-dark.svg#only-dark)"  # the page may be dark where the system is not
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name below each page the version that it is of."""
    config.copyright = f"vgpurun {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    files.append(File.generated(config, "index.md", content=(_CHECKOUT / "README.md").read_text()))
    for name in _PAGES:
        files.append(File.generated(config, name, content=(_CHECKOUT / name).read_text()))
    picture = "examples/report/page.png"
    files.append(File.generated(config, picture, abs_src_path=str(_CHECKOUT / picture)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where their pages are in the site."""
    del config
    place = "README.md" if page.file.src_uri == "index.md" else page.file.src_uri
    folder = posixpath.dirname(place if place == "README.md" or place in _PAGES else f"docs/{place}")
    here = posixpath.dirname(page.file.src_uri)

    def mended(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        wanted = posixpath.normpath(posixpath.join(folder, target))
        name = "index.md" if wanted == "README.md" else wanted.removeprefix("docs/")
        if files.get_file_from_path(name) is None:
            return text
        return f"{mark}[{text}]({posixpath.relpath(name, here or '.')}{anchor or ''})"

    return _PICTURE.sub(_IN_BOTH, _LINK.sub(mended, markdown))
