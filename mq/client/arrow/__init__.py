"""Messages as Arrow columns, and Arrow rows as messages: the extra `mq[arrow]`.

    runs      where the messages of a page stand
    frames    where the fields of many messages stand, found with numpy
    columns   the schema, and messages as record batches
    polling   what a member of a group was delivered, and messages that are alike
    reading   ranges of queues
    encoding  rows of a record batch as frames of messages
    sending   rows of a table over the stream of a producer
    cutting   encoded rows as batches under numbers of their own, for sinks that may run again

The work is done per batch and per field, never per message. The rest of the client imports this
package only when columns are asked for: it runs without pyarrow and numpy.
"""

from __future__ import annotations

from mq.extras import explained

try:
    import pyarrow as pa  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(explained("Arrow", error), name=error.name) from None
