"""Legal names of topics. Names become directories, so a name that is let in here is safe as a file
name.
"""

from __future__ import annotations

import functools
import re

from mq.errors import IllegalTopic

NAME_CHARACTERS_MAX = 127
QUEUE_ID_MAX = 65_535

_NAME = re.compile(rf"[A-Za-z0-9%|_-]{{1,{NAME_CHARACTERS_MAX}}}")


@functools.lru_cache(maxsize=65_536)
def is_legal_name(name: str) -> bool:
    """Letters, digits and %|_- only, 1 to 127 of them."""
    return _NAME.fullmatch(name) is not None


def check_topic(topic: str) -> None:
    """Raises IllegalTopic unless the topic can be stored."""
    # What is too long must not get into the cache: callers send it, and memory is ours.
    if len(topic) > NAME_CHARACTERS_MAX or not is_legal_name(topic):
        raise IllegalTopic(
            f"topic {topic[:200]!r} is not legal: "
            f"use 1 to {NAME_CHARACTERS_MAX} of letters, digits and %|_-"
        )
