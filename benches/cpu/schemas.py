"""Fifty JSON schemas of growing difficulty: scalars, objects, arrays, choices, references, recursion.

Every one of them has instances that fit into a few hundred tokens, whatever a model prefers.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def obj(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    """An object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def text(longest: int = 24, **more: Any) -> Schema:
    """A string of bounded length."""
    return {"type": "string", "maxLength": longest} | more


def number(low: int, high: int) -> Schema:
    """An integer between two bounds."""
    return {"type": "integer", "minimum": low, "maximum": high}


def items(schema: Schema, most: int, least: int = 0) -> Schema:
    """An array of bounded length."""
    return {"type": "array", "items": schema, "minItems": least, "maxItems": most}


def nested(depth: int) -> Schema:
    """Objects within objects."""
    return (
        obj({"leaf": {"type": "boolean"}})
        if depth == 0
        else obj({"in": nested(depth - 1), "n": number(0, 9)})
    )


COLOUR: Schema = {"enum": ["red", "green", "blue"]}
PERSON = obj({"name": text(), "age": number(0, 130), "email": text(40, format="email")}, ("email",))
ADDRESS = obj(
    {"street": text(), "zip": text(5, pattern="^[0-9]{5}$"), "country": {"enum": ["DE", "FR", "US"]}}
)


def growing() -> list[Schema]:
    """The schemas, the easy ones first."""
    scalars: list[Schema] = [
        {"type": "boolean"},
        {"type": "null"},
        {"const": "yes"},
        COLOUR,
        number(0, 100),
        number(-5, 5),
        {"type": "integer", "multipleOf": 7, "minimum": 7, "maximum": 700},
        text(12),
        text(8, minLength=3, pattern="^[a-z]+$"),
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "time"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "format": "ipv4"},
        {"enum": [1, "one", None, True, {"one": [1]}]},
    ]
    flat = [
        obj({"ok": {"type": "boolean"}}),
        obj({"colour": COLOUR, "size": number(1, 50)}),
        obj({"name": text(), "tags": items(text(10), 3)}),
        obj({"id": {"type": "string", "format": "uuid"}, "at": {"type": "string", "format": "date"}}),
        obj({"a": number(0, 9), "b": number(0, 9), "c": number(0, 9)}, ("b",)),
        obj({"value": {"type": ["integer", "null"], "minimum": 0, "maximum": 999}}),
        obj({"value": {"anyOf": [number(0, 9), {"enum": ["none"]}]}}),
        obj({"first name": text(), 'quoted"key': {"type": "boolean"}, "ümlaut": number(0, 1)}),
        obj({f"field{index}": number(0, 9) for index in range(20)}),
        obj(
            {f"option{index}": {"type": "boolean"} for index in range(12)},
            tuple(f"option{i}" for i in range(12)),
        ),
        PERSON,
        ADDRESS,
    ]
    arrays = [
        items({"type": "boolean"}, 4),
        items(number(0, 255), 4, 4),
        items(COLOUR, 5, 1),
        items({"anyOf": [{"type": "boolean"}, COLOUR, number(0, 9)]}, 5, 2),
        {
            "type": "array",
            "prefixItems": [COLOUR, number(0, 9), {"type": "null"}],
            "items": False,
            "minItems": 3,
        },
        items(items(number(0, 1), 3, 3), 3, 3),
        items(PERSON, 2, 1),
        items(obj({"x": number(-9, 9), "y": number(-9, 9)}), 4, 1),
    ]
    deep = [
        obj({"person": PERSON, "address": ADDRESS}),
        obj({"order": items(obj({"sku": text(8), "count": number(1, 9)}), 3, 1), "total": number(0, 9999)}),
        obj({"matrix": items(items(number(0, 9), 2, 2), 2, 2), "labels": items(text(6), 2, 2)}),
        *(nested(depth) for depth in (2, 4, 8)),
        {
            "anyOf": [
                obj({"kind": {"const": "circle"}, "radius": number(1, 9)}),
                obj({"kind": {"const": "square"}, "side": number(1, 9)}),
            ]
        },
        {"allOf": [obj({"a": number(0, 9), "b": True}), {"properties": {"b": COLOUR}}]},
    ]
    point = {"$defs": {"p": obj({"x": number(0, 9), "y": number(0, 9)})}}
    references: list[Schema] = [
        {**point, "$ref": "#/$defs/p"},
        {**point, **items({"$ref": "#/$defs/p"}, 3, 1)},
        {**point, **obj({"from": {"$ref": "#/$defs/p"}, "to": {"$ref": "#/$defs/p"}})},
        {**obj({"a": {"$ref": "#/properties/b"}, "b": COLOUR})},
        {
            "$defs": {
                "list": obj(
                    {"v": number(0, 9), "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/end"}]}}
                ),
                "end": obj({"v": {"const": 0}}),
            },
            "$ref": "#/$defs/list",
        },
    ]
    large = [
        obj(
            {
                "title": text(30),
                "authors": items(obj({"name": text(20), "role": {"enum": ["lead", "other"]}}), 2, 1),
                "published": {"type": "string", "format": "date"},
                "ratings": obj({"mean": number(1, 5), "counts": items(number(0, 99), 5, 5)}),
                "related": items({"type": "string", "pattern": "^/[a-z]{3,8}$"}, 2),
            }
        ),
        obj(
            {
                f"section{index}": obj(
                    {"heading": text(16), "flags": items({"type": "boolean"}, 2), "level": number(1, 6)}
                )
                for index in range(5)
            }
        ),
    ]
    return [*scalars, *flat, *arrays, *deep, *references, *large]
