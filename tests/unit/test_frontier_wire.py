"""The modules that were made of the frontier's interface are those of its description."""

import re
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from starter.extras.frontier.wire import urlfrontier_pb2
from starter.extras.frontier.wire.urlfrontier_pb2_grpc import URLFrontierServicer

DESCRIPTION = Path(urlfrontier_pb2.__file__).with_name("urlfrontier.proto").read_text("utf-8")
MESSAGE = re.compile(r"^message (\w+) \{(?:\}|\n(.*?)^\})", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^ *(?:(?:repeated|optional) )?([\w.]+|map<\w+, \w+>) (\w+) = (\d+);$", re.MULTILINE)
CALL = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);")


def _describe(field: FieldDescriptor) -> tuple[str, int, str]:
    kind = FieldDescriptorProto.Type.DESCRIPTOR.values_by_number[field.type].name.removeprefix("TYPE_").lower()
    if field.enum_type is not None:
        kind = field.enum_type.name
    elif field.message_type is not None:
        kind = field.message_type.name
        if field.message_type.GetOptions().map_entry:
            kind = f"map<{', '.join(_describe(part)[2] for part in field.message_type.fields)}>"
    return field.name, field.number, kind


def test_every_message_has_the_fields_that_are_described() -> None:
    """With their numbers and types, and no others."""
    described = {
        name: {(field, int(number), kind.rpartition(".")[2]) for kind, field, number in FIELD.findall(body)}
        for name, body in MESSAGE.findall(DESCRIPTION)
    }
    made = {
        name: set(map(_describe, kind.fields))
        for name, kind in urlfrontier_pb2.DESCRIPTOR.message_types_by_name.items()
    }

    assert len(made) > 25
    assert made == described


def test_every_call_is_the_one_that_is_described() -> None:
    """Its request, its response, and which of them are streams; the servicer has a method for each."""
    service = urlfrontier_pb2.DESCRIPTOR.services_by_name["URLFrontier"]
    made = {
        (call.name, call.client_streaming, call.input_type.name, call.server_streaming, call.output_type.name)
        for call in service.methods
    }

    assert made == {(name, bool(a), taken, bool(b), given) for name, a, taken, b, given in CALL.findall(DESCRIPTION)}
    assert {name for name, *_ in made} <= vars(URLFrontierServicer).keys()
