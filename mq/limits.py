"""Limits of a message that producers, brokers and consumers agree on."""

from __future__ import annotations

# Beside its body a message has a tag, keys, properties and times: so much more than the largest
# body it may have in all.
BESIDE_BODY_BYTES_MAX = 64 << 10
# A body that is decompressed: the most that a broker can be configured to take uncompressed.
BODY_BYTES_MAX = 64 << 20
