"""The Huffman code of HPACK (RFC 7541, appendix B), decoding only: this server sends plain strings.

The code is canonical: codes of one length are consecutive, in the order of their symbols, so that
the lengths of all symbols say everything. From them a table is made once that takes four bits at a
time, and from that one the steps of whole bytes that are in use.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Symbols by the length of their code in bits. 256 is the end of the string, which is never sent
# whole: its first bits, all ones, pad the last byte.
_SYMBOLS: Final = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\0$@[]~",
    14: b"^}",
    15: b"<`{",
    19: [92, 195, 208],
    20: [128, 130, 131, 162, 184, 194, 224, 226],
    21: [153, 161, 167, 172, 176, 177, 179, 209, 216, 217, 227, 229, 230],
    22: [
        *(129, 132, 133, 134, 136, 146, 154, 156, 160, 163, 164, 169, 170, 173, 178, 181, 185),
        *(186, 187, 189, 190, 196, 198, 228, 232, 233),
    ],
    23: [
        *(1, 135, 137, 138, 139, 140, 141, 143, 147, 149, 150, 151, 152, 155, 157, 158, 165, 166),
        *(168, 174, 175, 180, 182, 183, 188, 191, 197, 231, 239),
    ],
    24: [9, 142, 144, 145, 148, 159, 171, 206, 215, 225, 236, 237],
    25: [199, 207, 234, 235],
    26: [192, 193, 200, 201, 202, 205, 210, 213, 218, 219, 238, 240, 242, 243, 255],
    27: [
        *(203, 204, 211, 212, 214, 221, 222, 223, 241, 244, 245, 246, 247, 248, 250, 251, 252),
        *(253, 254),
    ],
    28: [*range(2, 9), 11, 12, *range(14, 22), *range(23, 32), 127, 220, 249],
    30: [10, 13, 22, 256],
}
_END: Final = 256
# Padding is shorter than a byte.
_PADDING_BITS_MAX: Final = 7


class _Step(NamedTuple):
    """The state of the decoder after more bits, and the symbols that they complete."""

    node: int
    symbols: bytes
    # Whether the string may end here: what is read since the last symbol is padding.
    may_end: bool


def _codes() -> dict[tuple[int, int], int]:
    """(bits, code) -> symbol."""
    found, code, before = {}, 0, 0
    for bits, symbols in _SYMBOLS.items():
        code <<= bits - before
        before = bits
        for symbol in symbols:
            found[bits, code] = symbol
            code += 1
    return found


def _table() -> list[list[_Step | None]]:
    """One row a node of the tree, and in it a step for each four bits; None: no string has them."""
    codes = _codes()
    # A node is a prefix of codes: its length, and its bits. The root is number 0.
    nodes = sorted({(n, code >> (bits - n)) for bits, code in codes for n in range(bits)})
    numbers = {node: number for number, node in enumerate(nodes)}

    def walk(node: tuple[int, int], nibble: int) -> _Step | None:
        symbols = b""
        for shift in (3, 2, 1, 0):
            node = (node[0] + 1, node[1] << 1 | (nibble >> shift & 1))
            found = codes.get(node)
            if found == _END:
                return None
            if found is not None:
                symbols, node = symbols + bytes([found]), (0, 0)
        bits, prefix = node
        may_end = bits <= _PADDING_BITS_MAX and prefix == (1 << bits) - 1
        return _Step(numbers[node], symbols, may_end)

    return [[walk(node, nibble) for nibble in range(16)] for node in nodes]


_TABLE: Final = _table()
# Steps of whole bytes, by node and byte, made of two steps of `_TABLE` when they are first needed.
_BYTE_STEPS: Final[dict[int, _Step]] = {}


def decode(data: bytes) -> bytes:
    """ValueError: not a Huffman-coded string."""
    found = []
    node, may_end = 0, True
    for byte in data:
        step = _BYTE_STEPS.get(node << 8 | byte)
        if step is None:
            step = _BYTE_STEPS[node << 8 | byte] = _byte_step(node, byte)
        node, symbols, may_end = step
        found.append(symbols)
    if not may_end:
        raise ValueError("a string ends within a symbol")
    return b"".join(found)


def _byte_step(node: int, byte: int) -> _Step:
    first = _TABLE[node][byte >> 4]
    last = _TABLE[first.node][byte & 15] if first is not None else None
    if first is None or last is None:
        raise ValueError("the end of a string is within it")
    return _Step(last.node, first.symbols + last.symbols, last.may_end)
