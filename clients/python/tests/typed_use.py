"""Code that mypy checks, and that no test runs. mypy also reports a comment `type: ignore` on a line without an
error."""

from larder_client import Client, HashClient, MemcacheError, PooledClient, Tls, asyncio
from larder_client.serde import CompressedSerde, PickleSerde


class Upper:
    def serialize(self, key: object, value: str) -> tuple[str, int]:
        return value.upper(), 1

    def deserialize(self, key: object, value: bytes, flags: int) -> str:
        return value.decode()


def use() -> None:
    client = PooledClient(("cache", 11211), serde=CompressedSerde(serde=PickleSerde()), max_pool_size=4, timeout=None)
    number: int | None = client.incr("n", 1)
    stored: bool | None = client.cas(b"key", "value", client.gets("key")[1])
    failed: list[str] = client.set_many({"a": 1}, expire=60)
    opened, idle, waiting = client.connections()
    Client("cache", serde=Upper(), key_prefix="p:").set("key", b"value", 60, noreply=False)
    HashClient(["cache-1", ("cache-2", 11211)], use_pooling=True, tls=True, failover=True).get("key", default=5)
    PooledClient("cache", tls=Tls(ca_file="ca.pem", server_name="cache"))
    try:
        client["key"] = number, stored, failed, opened, idle, waiting
    except MemcacheError as error:
        print(error.is_ambiguous)

    client.get(5)  # type: ignore[arg-type]
    client.set("key", "value", expire=1.5)  # type: ignore[arg-type]
    client.no_such_method()  # type: ignore[attr-defined]
    PooledClient("cache", no_such_argument=1)  # type: ignore[call-arg]
    Client(5)  # type: ignore[arg-type]
    Client("cache", tls="ca.pem")  # type: ignore[arg-type]


async def use_asyncio() -> None:
    async with asyncio.Client(("cache", 11211), serde=PickleSerde(), timeout=None) as client:
        number: int | None = await client.incr("n", 1)
        stored: bool | None = await client.cas(b"key", "value", (await client.gets("key"))[1])
        failed: list[str] = await client.set_many({"a": 1}, expire=60)
        version: bytes = await client.version()
        print(number, stored, failed, version)
    several = asyncio.HashClient(["cache-1", ("cache-2", 11211)], tls=Tls(cert_file="both.pem"), failover=True)
    await several.get("key", default=5)

    await client.get(5)  # type: ignore[arg-type]
    await client.set("key", "value", expire=1.5)  # type: ignore[arg-type]
    asyncio.Client("cache", no_such_argument=1)  # type: ignore[call-arg]
