"""Messages as Arrow columns, and Arrow rows as messages: the extra `mq[arrow]`.

    runs      where the messages of a response stand
    frames    where the fields of many messages stand, found with numpy
    columns   the schema, and messages as record batches
    encoding  rows of a record batch as frames of messages
    cutting   encoded rows as numbered batches for the queues of a topic

The work is done per batch and per field, never per message. The rest of the client imports this
package only when columns are asked for: it runs without pyarrow and numpy.
"""

from __future__ import annotations

try:
    import pyarrow as pa  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "Arrow columns need pyarrow, which is not installed: pip install 'mq[arrow]'",
        name=error.name,
    ) from None
