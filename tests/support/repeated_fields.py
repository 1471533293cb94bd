"""The repeated fields of requests, found in the descriptors, and requests with any number of empty
elements in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor

from tests.support.naive_wire import field as wire_field
from tests.support.naive_wire import varint

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDTHS = {
    FieldDescriptor.TYPE_STRING: 0,
    FieldDescriptor.TYPE_BYTES: 0,
    FieldDescriptor.TYPE_MESSAGE: 0,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_ENUM: 1,
    FieldDescriptor.TYPE_UINT32: 1,
    FieldDescriptor.TYPE_UINT64: 1,
}
_UNPACKED_WIRE_TYPES = {1: 0, 4: 5, 8: 1}


class RepeatedField(NamedTuple):
    """`path` are the numbers of the fields that lead to it from the request."""

    request: Any
    path: tuple[int, ...]
    field: Any

    @property
    def name(self) -> str:
        return f"{self.field.containing_type.name.removeprefix('Raw')}.{self.field.name}"

    def filled(self, count: int, *, is_packed: bool = True) -> bytes:
        """A request with so many elements, as short as they can be."""
        content = self._elements(count, is_packed=is_packed)
        for number in reversed(self.path):
            content = wire_field(number, content)
        return content

    def _elements(self, count: int, *, is_packed: bool) -> bytes:
        number, width = self.field.number, _WIDTHS[self.field.type]
        if not width:
            return (varint(number << 3 | 2) + b"\0") * count
        if is_packed:
            return wire_field(number, bytes(width * count))
        return (varint(number << 3 | _UNPACKED_WIRE_TYPES[width]) + bytes(width)) * count


def repeated_fields(
    request: Any, descriptor: Any = None, path: tuple[int, ...] = ()
) -> Iterator[RepeatedField]:
    descriptor = descriptor or request
    for field in descriptor.fields:
        if field.is_repeated:
            yield RepeatedField(request, path, field)
        # A request within a request of the same type is one of those.
        inner = field.message_type
        if inner is not None and not inner.GetOptions().map_entry and inner != descriptor:
            yield from repeated_fields(request, inner, (*path, field.number))
