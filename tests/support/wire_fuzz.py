"""Malformed requests: messages with random and extreme fields, and bytes that were a good request
once. All of it follows from the seed of the random source that comes in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from google.protobuf.message import Message

_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_I64 = (1 << 63) - 1
_TEXTS = (
    "",
    "*",
    "a || b",
    "x = 1",
    "((((",
    "a" * 127,
    "b" * 5_000,
    "%SYS%HALF",
    "%RETRY%g",
    "../../etc/passwd",
    "line\nbreak\x00",
    "naïve \N{SNOWMAN}",
    "set-0:0",
    "set-0:9999999999999999999",
    "1e400",
    "-1",
)
_DEPTH_MAX = 3
_MUTATIONS_MAX = 6


def fill(message: Message, rng: random.Random, names: Sequence[str], depth: int = 0) -> Message:
    """Sets some of its fields to anything that their types allow."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name)[_text(rng, names)] = _text(rng, names)
        elif field.message_type is not None:
            if depth < _DEPTH_MAX:
                _fill_inner(message, field, rng, names, depth)
        elif field.is_repeated:
            count = rng.choice((0, 1, 2, 40))
            getattr(message, field.name).extend(_value(field, rng, names) for _ in range(count))
        else:
            setattr(message, field.name, _value(field, rng, names))
    return message


def _fill_inner(
    message: Message,
    field: Any,
    rng: random.Random,
    names: Sequence[str],
    depth: int,
) -> None:
    inner = getattr(message, field.name)
    if field.is_repeated:
        for _ in range(rng.choice((0, 1, 1, 3))):
            fill(inner.add(), rng, names, depth + 1)
    else:
        inner.SetInParent()
        fill(inner, rng, names, depth + 1)


def _text(rng: random.Random, names: Sequence[str]) -> str:
    return rng.choice(names) if names and rng.random() < 0.5 else rng.choice(_TEXTS)


def _value(field: Any, rng: random.Random, names: Sequence[str]) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return _text(rng, names)
        case FieldDescriptor.TYPE_BYTES:
            return rng.randbytes(rng.choice((0, 1, 50)))
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case FieldDescriptor.TYPE_ENUM:
            return rng.choice((0, 1, 2, 3, 99, -1, (1 << 31) - 1))
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
            return rng.choice((0, 0, 1, 2, 7, 65_535, 65_536, _U32))
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return rng.choice((0, 0, 1, 2, 100, _U32 + 1, _I64, _I64 + 1, _U64))
        case FieldDescriptor.TYPE_INT64 | FieldDescriptor.TYPE_SFIXED64:
            return rng.choice((0, 1, -1, 1_700_000_000_000, _I64, -_I64 - 1))
        case FieldDescriptor.TYPE_INT32:
            return rng.choice((0, 1, -1, 7, 65_536, (1 << 31) - 1, -(1 << 31)))
        case FieldDescriptor.TYPE_FLOAT:
            return rng.choice((0.0, -1.0, 2.0, float("inf"), float("nan")))
    raise NotImplementedError(f"{field.full_name}: a type that no request had before")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The same bytes, damaged."""
    mutated = bytearray(data)
    for _ in range(rng.randint(1, _MUTATIONS_MAX)):
        at = rng.randrange(len(mutated) + 1)
        match rng.randrange(6):
            case 0 if mutated:
                mutated[at % len(mutated)] ^= 1 << rng.randrange(8)
            case 1 if mutated:
                mutated[at % len(mutated)] = rng.choice((0, 0x7F, 0x80, 0xFF))
            case 2:
                mutated[at:at] = rng.randbytes(rng.randint(1, 8))
            case 3:
                del mutated[at : at + rng.randint(1, 8)]
            case 4:
                mutated += mutated[at : at + 20]
            case _:
                del mutated[at:]
    return bytes(mutated)
