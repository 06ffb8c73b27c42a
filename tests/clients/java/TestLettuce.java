import io.lettuce.core.ClientOptions;
import io.lettuce.core.CompareCondition;
import io.lettuce.core.KeyValue;
import io.lettuce.core.LettuceFutures;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TrackingArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.async.RedisAsyncCommands;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import io.lettuce.core.support.caching.CacheAccessor;
import io.lettuce.core.support.caching.CacheFrontend;
import io.lettuce.core.support.caching.ClientSideCaching;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

/** Tests Lettuce on the port in the first argument. With a second argument, tests only the message about all items. */
class TestLettuce extends Checks {
    public static void main(String[] arguments) throws Exception {
        RedisURI uri = RedisURI.create("127.0.0.1", Integer.parseInt(arguments[0]));
        if (arguments.length == 1) {
            testAll(uri);
        } else {
            RedisClient client = RedisClient.create(uri);
            testMessageAboutAllItems(client);
            client.shutdown(0, 5, TimeUnit.SECONDS);
        }
        System.out.println("ok");
    }

    static void testAll(RedisURI uri) throws Exception {
        for (ProtocolVersion version : List.of(ProtocolVersion.RESP2, ProtocolVersion.RESP3)) {
            RedisClient client = RedisClient.create(uri);
            client.setOptions(ClientOptions.builder().protocolVersion(version).build());
            try (StatefulRedisConnection<String, String> connection = client.connect();
                    StatefulRedisConnection<String, String> other = client.connect()) {
                testSync(connection.sync());
                testBytes(client);
                testAsync(connection);
                testTransactions(connection.sync(), other.sync());
                testScan(connection.sync());
                testScripts(connection.sync());
            }
            client.shutdown(0, 5, TimeUnit.SECONDS);
        }
        RedisClient client = RedisClient.create(uri);
        testCache(client);
        testBroadcast(client);
        testMessageAboutAllItems(client);
        testRestart(client);
        client.shutdown(0, 5, TimeUnit.SECONDS);
    }

    static void testSync(RedisCommands<String, String> commands) throws InterruptedException {
        check("flushall", commands.flushall(), "OK");
        check("ping", commands.ping(), "PONG");
        check("set", commands.set("key", "value"), "OK");
        check("get", commands.get("key"), "value");
        check("get of an absent key", commands.get("absent"), null);
        check("set with nx", commands.set("key", "other", SetArgs.Builder.nx().ex(50)), null);
        check("set of an absent key with nx", commands.set("added", "value", SetArgs.Builder.nx().ex(50)), "OK");
        checkBetween("ttl", commands.ttl("added"), 49, 50);
        check("set with xx", commands.set("key", "second", SetArgs.Builder.xx().px(Duration.ofSeconds(40))), "OK");
        checkBetween("pttl", commands.pttl("key"), 30_000, 40_000);
        check("setGet", commands.setGet("key", "third"), "second");
        check("psetex", commands.psetex("short", 50, "value"), "OK");
        waitUntil("the item has expired", () -> commands.get("short") == null);
        check("mset", commands.mset(Map.of("one", "1", "two", "2")), "OK");
        check("mget", commands.mget("one", "absent", "two"),
            List.of(KeyValue.just("one", "1"), KeyValue.empty("absent"), KeyValue.just("two", "2")));
        check("incrby", commands.incrby("one", 41), 42L);
        check("incrbyfloat", commands.incrbyfloat("one", 0.5), 42.5);
        check("getdel", commands.getdel("two"), "2");
        check("del", commands.del("one", "two"), 1L);
        check("expire", commands.expire("key", Duration.ofSeconds(30)), true);
        check("persist", commands.persist("key"), true);
        checkFails("incr of a text", () -> commands.incr("key"), "not an integer");
        checkFails("a list", () -> commands.lpush("list", "value"), "unknown command");
        SetArgs ifEqual = new SetArgs().compareCondition(CompareCondition.valueEq("other"));
        check("set if the value is equal", commands.set("key", "fourth", ifEqual), null);
        SetArgs ifUnequal = new SetArgs().compareCondition(CompareCondition.valueNe("other"));
        check("set if the value is unequal", commands.set("key", "fourth", ifUnequal), "OK");
        check("delex of another value", commands.delex("key", CompareCondition.valueEq("other")), 0L);
        check("delex", commands.delex("key", CompareCondition.valueEq("fourth")), 1L);
    }

    static void testBytes(RedisClient client) {
        try (StatefulRedisConnection<byte[], byte[]> connection = client.connect(ByteArrayCodec.INSTANCE)) {
            byte[] binary = {0, '\r', '\n', (byte) 0xff};
            check("set of bytes", connection.sync().set(binary, binary), "OK");
            checkBytes("get of bytes", connection.sync().get(binary), binary);
            byte[] large = new byte[900_000];
            check("set of a large value", connection.sync().set(binary, large), "OK");
            checkBytes("get of a large value", connection.sync().get(binary), large);
        }
    }

    static void testAsync(StatefulRedisConnection<String, String> connection) throws Exception {
        RedisAsyncCommands<String, String> commands = connection.async();
        commands.flushall().get();
        check("async", commands.set("key", "value").thenCompose(ok -> commands.get("key")).toCompletableFuture().get(),
            "value");
        check("reactive", connection.reactive().mget("key", "absent").collectList().block(),
            List.of(KeyValue.just("key", "value"), KeyValue.empty("absent")));
        connection.setAutoFlushCommands(false);
        List<RedisFuture<Long>> counts = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            counts.add(commands.incr("count"));
        }
        RedisFuture<Long> error = commands.incr("key");
        RedisFuture<String> last = commands.get("key");
        connection.flushCommands();
        connection.setAutoFlushCommands(true);
        RedisFuture<?>[] all = counts.toArray(RedisFuture[]::new);
        check("the pipeline has ended", LettuceFutures.awaitAll(Duration.ofSeconds(30), all), true);
        for (int i = 0; i < 1000; i++) {
            check("a count in the pipeline", counts.get(i).get(), i + 1L);
        }
        check("get after the error", last.get(), "value");
        check("an error in the pipeline", error.getError().contains("not an integer"), true);
    }

    static void testTransactions(RedisCommands<String, String> commands, RedisCommands<String, String> other) {
        commands.flushall();
        commands.multi();
        check("a command in the transaction", commands.incr("count"), null);
        commands.expire("count", 50);
        commands.get("count");
        check("exec", commands.exec().stream().toList(), List.of(1L, true, "1"));
        commands.multi();
        commands.set("count", "9");
        check("discard", commands.discard(), "OK");
        check("the value after discard", commands.get("count"), "1");
        commands.watch("count");
        check("a change by another connection", other.incr("count"), 2L);
        commands.multi();
        commands.set("count", "9");
        TransactionResult result = commands.exec();
        check("exec after the change", List.of(result.wasDiscarded(), other.get("count")), List.of(true, "2"));
        commands.watch("count");
        commands.multi();
        commands.set("count", "9");
        result = commands.exec();
        check("exec without a change", List.of(result.wasDiscarded(), other.get("count")), List.of(false, "9"));
    }

    static void testScan(RedisCommands<String, String> commands) throws InterruptedException {
        commands.flushall();
        Map<String, String> items = new HashMap<>();
        for (int i = 0; i < 1000; i++) {
            items.put("scanned:" + i, "value");
        }
        commands.mset(items);
        commands.set("other", "value");
        Set<String> found = new HashSet<>();
        ScanIterator.scan(commands, ScanArgs.Builder.limit(100).match("scanned:*")).forEachRemaining(found::add);
        check("ScanIterator", found, items.keySet());
        // Flushed items count until the server has removed them.
        waitUntil("1001 items", () -> commands.dbsize() == 1001);
    }

    static void testScripts(RedisCommands<String, String> commands) {
        commands.flushall();
        String[] keys = {"lock"};
        SetArgs lock = SetArgs.Builder.nx().px(50_000);
        check("a lock", commands.set("lock", "owner", lock), "OK");
        check("a held lock", commands.set("lock", "other", lock), null);
        check("eval with another value", commands.eval(RELEASE, ScriptOutputType.INTEGER, keys, "other"), 0L);
        check("eval", commands.eval(RELEASE, ScriptOutputType.INTEGER, keys, "owner"), 1L);
        check("scriptLoad", commands.scriptLoad(RELEASE), RELEASE_SHA);
        commands.set("lock", "owner", lock);
        check("evalsha", commands.evalsha(RELEASE_SHA, ScriptOutputType.BOOLEAN, keys, "owner"), true);
        checkFails("another script", () -> commands.eval("return 1", ScriptOutputType.INTEGER), "ERR unknown script");
    }

    static void testCache(RedisClient client) throws InterruptedException {
        Map<String, String> copies = new ConcurrentHashMap<>();
        try (StatefulRedisConnection<String, String> connection = client.connect();
                StatefulRedisConnection<String, String> other = client.connect()) {
            other.sync().flushall();
            other.sync().mset(Map.of("key", "1", "kept", "1"));
            CacheFrontend<String, String> near =
                ClientSideCaching.enable(CacheAccessor.forMap(copies), connection, TrackingArgs.Builder.enabled());
            check("get", List.of(near.get("key"), near.get("kept")), List.of("1", "1"));
            check("copies", copies, Map.of("key", "1", "kept", "1"));
            copies.put("key", "copy");
            check("get of a copy", near.get("key"), "copy");
            other.sync().set("key", "2");
            waitUntil("the copy is outdated", () -> !copies.containsKey("key"));
            check("get after the change", near.get("key"), "2");
            other.sync().del("key");
            waitUntil("the copy is outdated", () -> !copies.containsKey("key"));
            check("get after the deletion", near.get("key"), null);
            check("get of an absent item", near.get("key", () -> "computed"), "computed");
            check("the computed item", other.sync().get("key"), "computed");
            other.sync().psetex("key", 100, "short");
            waitUntil("the copy is outdated", () -> !copies.containsKey("key"));
            near.get("key");
            waitUntil("the copy has expired", () -> !copies.containsKey("key"));
            check("the other copy", copies, Map.of("kept", "1"));
        }
    }

    static void testBroadcast(RedisClient client) throws InterruptedException {
        Set<String> changed = ConcurrentHashMap.newKeySet();
        try (StatefulRedisConnection<String, String> connection = client.connect();
                StatefulRedisConnection<String, String> other = client.connect()) {
            connection.addListener(message -> {
                List<Object> content = message.getContent(StandardCharsets.UTF_8::decode);
                ((List<?>) content.get(1)).forEach(key -> changed.add(key.toString()));
            });
            TrackingArgs tracking = TrackingArgs.Builder.enabled().bcast().prefixes("user:", "order:").noloop();
            check("clientTracking", connection.sync().clientTracking(tracking), "OK");
            connection.sync().set("user:own", "value");
            other.sync().set("user:1", "value");
            other.sync().set("another:1", "value");
            other.sync().set("order:1", "value");
            waitUntil("both messages", () -> changed.containsAll(Set.of("user:1", "order:1")));
            check("changed keys", changed, Set.of("user:1", "order:1"));
        }
    }

    /** Lettuce fails on the message, keeps the outdated copy, and continues. */
    static void testMessageAboutAllItems(RedisClient client) throws InterruptedException {
        Map<String, String> copies = new ConcurrentHashMap<>();
        AtomicInteger messages = new AtomicInteger();
        try (StatefulRedisConnection<String, String> connection = client.connect();
                StatefulRedisConnection<String, String> other = client.connect()) {
            connection.addListener(message -> messages.incrementAndGet());
            other.sync().set("key", "1");
            CacheFrontend<String, String> near =
                ClientSideCaching.enable(CacheAccessor.forMap(copies), connection, TrackingArgs.Builder.enabled());
            near.get("key");
            other.sync().flushall();
            waitUntil("the message", () -> messages.get() == 1);
            check("the item", connection.sync().get("key"), null);
            check("the outdated copy", near.get("key"), "1");
            other.sync().set("key", "2");
            waitUntil("the next message", () -> !copies.containsKey("key"));
            check("get after the next message", near.get("key"), "2");
        }
    }

    static void testRestart(RedisClient client) throws Exception {
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            connection.sync().set("key", "value");
            restartServer();
            check("an item of the old server", connection.sync().get("key"), null);
            check("set after the restart", connection.sync().set("key", "value"), "OK");
        }
    }
}
