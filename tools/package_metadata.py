"""What the build adds to the metadata of the package: its readme and its addresses.

Links of README.md are relative: right in a checkout, dead on the page of a package index. A build
that is told the address of the repository, in `MQ_REPOSITORY_URL`, makes them whole and names the
address; one that is not leaves the text as it is. Hatchling calls this.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# A link or a picture of Markdown whose target is neither a whole address nor a heading.
_RELATIVE = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)\s]+)\)")


def with_whole_links(text: str, repository_url: str, version: str) -> str:
    """The text with links to the files of this version: pages for links, bytes for pictures."""
    base = f"{repository_url.rstrip('/')}"

    def whole(found: re.Match[str]) -> str:
        picture, label, target = found.groups()
        view = "raw" if picture else "blob"
        return f"{picture}{label}({base}/{view}/v{version}/{target})"

    return _RELATIVE.sub(whole, text)


class PackageMetadata(MetadataHookInterface):
    """Sets the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository_url = os.environ.get("MQ_REPOSITORY_URL", "").rstrip("/")
        urls = {}
        if repository_url:
            text = with_whole_links(text, repository_url, metadata["version"])
            urls = {
                "Repository": repository_url,
                "Documentation": f"{repository_url}/tree/main/docs",
                "Changelog": f"{repository_url}/blob/main/CHANGELOG.md",
                "Issues": f"{repository_url}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls
