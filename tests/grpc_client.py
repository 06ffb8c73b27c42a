"""A gRPC client that reads the description of the service by reflection, as grpcurl does."""

import threading

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

SERVICE = "larder.v1.Cache"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]


# The description of the service. All clients of a process share it: protobuf crashes if threads load several pools at
# the same time, because each load waits for replies.
_loading = threading.Lock()
_pools = []


def shared_pool(database):
    with _loading:
        if not _pools:
            pool = DescriptorPool(database)
            pool.FindServiceByName(SERVICE)
            _pools.append(pool)
        return _pools[0]


class Cache:
    """Calls the methods of `larder.v1.Cache` by name, with the fields of requests as keyword arguments."""

    def __init__(self, address, authorization=None, credentials=None):
        if credentials:
            self.channel = grpc.secure_channel(address, credentials, options=OPTIONS)
        else:
            self.channel = grpc.insecure_channel(address, options=OPTIONS)
        self.metadata = [("authorization", authorization)] if authorization else []
        database = ProtoReflectionDescriptorDatabase(_WithLogin(self.channel, self.metadata))
        self.services = list(database.get_services())
        self.pool = shared_pool(database)
        self.description = self.pool.FindServiceByName(SERVICE)
        self.outcomes = self.pool.FindEnumTypeByName("larder.v1.Outcome").values_by_number
        self.kinds = self.pool.FindEnumTypeByName("larder.v1.EventKind").values_by_name

    def message(self, name):
        return GetMessageClass(self.pool.FindMessageTypeByName(f"larder.v1.{name}"))

    def __getattr__(self, name):
        method = self.description.methods_by_name[name]
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        kind = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
        call = getattr(self.channel, "_".join(kind))(
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )

        def run(messages=None, timeout=60, **fields):
            given = request(**fields) if messages is None else messages
            return call(given, timeout=timeout, metadata=self.metadata)

        return run

    def outcome(self, response):
        """Returns the name of an outcome, without its prefix."""
        return self.outcomes[response.outcome].name.removeprefix("OUTCOME_")

    def write(self, pieces, length=None, **item):
        """Stores an item, whose value it sends in pieces."""
        head = self.message("WriteHead")(item=self.message("SetRequest")(**item))
        head.length = sum(map(len, pieces)) if length is None else length
        request = self.message("WriteRequest")
        return self.Write(iter([request(head=head), *(request(data=piece) for piece in pieces)]))

    def read(self, key):
        """Returns the head of an item, and its value."""
        first, *rest = self.Read(key=key)
        return first.head, b"".join(part.data for part in rest)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()


class _WithLogin:
    """Adds credentials to the metadata of all calls."""

    def __init__(self, channel, metadata):
        self.channel, self.metadata = channel, metadata

    def stream_stream(self, *names, **options):
        call = self.channel.stream_stream(*names, **options)
        return lambda requests, **more: call(requests, metadata=self.metadata)


def seconds(number):
    """Returns a duration for a request."""
    whole = int(number)
    return {"seconds": whole, "nanos": round((number - whole) * 1e9)}


def code(call):
    """Returns the status name and the message of a failing call."""
    try:
        result = call()
        if hasattr(result, "__next__"):
            list(result)
    except grpc.RpcError as error:
        return error.code().name, error.details()
    raise AssertionError("the call succeeded")
