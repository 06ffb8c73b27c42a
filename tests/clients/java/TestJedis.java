import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import redis.clients.jedis.AbstractPipeline;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.ConnectionPoolConfig;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPool;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.Transaction;
import redis.clients.jedis.csc.CacheConfig;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.params.GetExParams;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;
import redis.clients.jedis.util.CompareCondition;

/** Tests Jedis on the port in the first argument. */
class TestJedis extends Checks {
    public static void main(String[] arguments) throws Exception {
        HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(arguments[0]));
        for (RedisProtocol protocol : List.of(RedisProtocol.RESP2, RedisProtocol.RESP3)) {
            ConnectionPoolConfig pool = new ConnectionPoolConfig();
            pool.setMaxTotal(4);
            try (RedisClient client = RedisClient.builder().hostAndPort(address).poolConfig(pool)
                    .clientConfig(DefaultJedisClientConfig.builder().protocol(protocol).build()).build()) {
                testStrings(client);
                testPipeline(client);
                testTransactions(client);
                testScan(client);
                testPool(client);
                testScripts(client);
            }
        }
        testJedisPool(address);
        testCache(address);
        testRestart(address);
        System.out.println("ok");
    }

    static void testStrings(RedisClient client) throws InterruptedException {
        check("flushAll", client.flushAll(), "OK");
        check("set", client.set("key", "value"), "OK");
        check("get", client.get("key"), "value");
        check("get of an absent key", client.get("absent"), null);
        check("ttl without an expiry", client.ttl("key"), -1L);
        check("set with nx", client.set("key", "other", new SetParams().nx().ex(50)), null);
        check("set with xx", client.set("key", "second", new SetParams().xx().ex(50)), "OK");
        checkBetween("ttl", client.ttl("key"), 49, 50);
        check("set with keepTtl", client.set("key", "third", new SetParams().keepTtl()), "OK");
        checkBetween("ttl after keepTtl", client.ttl("key"), 49, 50);
        check("setGet", client.setGet("key", "fourth"), "third");
        check("setex", client.setex("timed", 100, "1"), "OK");
        check("getEx", client.getEx("timed", GetExParams.getExParams().persist()), "1");
        check("ttl after persist", client.ttl("timed"), -1L);
        check("expire", client.expire("timed", 30), 1L);
        checkBetween("pttl", client.pttl("timed"), 20_000, 30_000);
        check("psetex", client.psetex("short", 50, "value"), "OK");
        waitUntil("the item has expired", () -> client.get("short") == null);
        check("mset", client.mset("one", "1", "two", "2"), "OK");
        check("mget", client.mget("one", "absent", "two"), Arrays.asList("1", null, "2"));
        check("exists", client.exists("one", "two", "absent"), 2L);
        check("incrBy", client.incrBy("one", 41), 42L);
        check("incrByFloat", client.incrByFloat("one", 0.5), 42.5);
        check("append", client.append("two", "3"), 2L);
        check("getDel", client.getDel("two"), "23");
        check("del", client.del("one", "two"), 1L);
        check("type", client.type("key"), "string");
        byte[] binary = {0, '\r', '\n', (byte) 0xff};
        check("set of bytes", client.set(binary, binary), "OK");
        checkBytes("get of bytes", client.get(binary), binary);
        String large = "x".repeat(900_000);
        check("set of a large value", client.set("large", large), "OK");
        check("get of a large value", client.get("large").equals(large), true);
        checkFails("incr of a text", () -> client.incr("key"), "not an integer");
        checkFails("a list", () -> client.lpush("list", "value"), "unknown command");
        SetParams ifEqual = new SetParams().condition(CompareCondition.valueEq("other"));
        check("set if the value is equal", client.set("key", "fifth", ifEqual), null);
        SetParams ifUnequal = new SetParams().condition(CompareCondition.valueNe("other"));
        check("set if the value is unequal", client.set("key", "fifth", ifUnequal), "OK");
        check("delex of another value", client.delex("key", CompareCondition.valueEq("other")), 0L);
        check("delex", client.delex("key", CompareCondition.valueEq("fifth")), 1L);
    }

    static void testPipeline(RedisClient client) {
        client.flushAll();
        try (AbstractPipeline pipeline = client.pipelined()) {
            List<Response<Long>> counts = new ArrayList<>();
            for (int i = 0; i < 1000; i++) {
                counts.add(pipeline.incr("count"));
            }
            Response<String> text = pipeline.set("text", "value");
            Response<Long> error = pipeline.incr("text");
            Response<String> last = pipeline.get("text");
            pipeline.sync();
            for (int i = 0; i < 1000; i++) {
                check("a count in the pipeline", counts.get(i).get(), i + 1L);
            }
            check("set in the pipeline", text.get(), "OK");
            checkFails("an error in the pipeline", error::get, "not an integer");
            check("get after the error", last.get(), "value");
        }
    }

    static void testTransactions(RedisClient client) {
        client.flushAll();
        try (AbstractTransaction transaction = client.multi()) {
            Response<Long> count = transaction.incr("count");
            transaction.expire("count", 50);
            transaction.get("count");
            check("exec", transaction.exec(), List.of(1L, 1L, "1"));
            check("a response", count.get(), 1L);
        }
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set("count", "9");
            check("discard", transaction.discard(), "OK");
        }
        check("the value after discard", client.get("count"), "1");
        try (AbstractTransaction transaction = client.transaction(false)) {
            transaction.watch("count");
            check("a change by another connection", client.incr("count"), 2L);
            transaction.multi();
            transaction.set("count", "9");
            check("exec after the change", transaction.exec(), null);
            transaction.watch("count");
            transaction.multi();
            transaction.set("count", "9");
            check("exec without a change", transaction.exec(), List.of("OK"));
        }
        check("the value after exec", client.get("count"), "9");
    }

    static void testScan(RedisClient client) {
        client.flushAll();
        Set<String> keys = new HashSet<>();
        for (int i = 0; i < 1000; i++) {
            keys.add("scanned:" + i);
        }
        try (AbstractPipeline pipeline = client.pipelined()) {
            keys.forEach(key -> pipeline.set(key, "value"));
            pipeline.set("other", "value");
        }
        Set<String> found = new HashSet<>();
        client.scanIteration(100, "scanned:*").collect(found);
        check("scanIteration", found, keys);
        found.clear();
        String cursor = ScanParams.SCAN_POINTER_START;
        do {
            ScanResult<String> page = client.scan(cursor, new ScanParams().match("scanned:*").count(50), "string");
            found.addAll(page.getResult());
            cursor = page.getCursor();
        } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
        check("scan", found, keys);
        check("keys", client.keys("scanned:99?").size(), 10);
    }

    static void testPool(RedisClient client) throws Exception {
        client.flushAll();
        Callable<Void> increments = () -> {
            for (int i = 0; i < 200; i++) {
                client.incr("count");
            }
            return null;
        };
        inThreads(8, increments);
        check("increments of eight threads", client.get("count"), "1600");
        checkBetween("connections", client.getPool().getNumActive() + client.getPool().getNumIdle(), 1, 4);
        Callable<Void> optimistic = () -> {
            for (int done = 0; done < 20;) {
                try (AbstractTransaction transaction = client.transaction(false)) {
                    transaction.watch("optimistic");
                    String value = client.get("optimistic");
                    transaction.multi();
                    transaction.set("optimistic", String.valueOf(value == null ? 1 : Integer.parseInt(value) + 1));
                    done += transaction.exec() == null ? 0 : 1;
                }
            }
            return null;
        };
        inThreads(2, optimistic);
        check("transactions of two threads", client.get("optimistic"), "40");
    }

    static void inThreads(int count, Callable<Void> task) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(count);
        for (Future<Void> done : threads.invokeAll(Collections.nCopies(count, task))) {
            done.get();
        }
        threads.shutdown();
    }

    static void testScripts(RedisClient client) {
        client.flushAll();
        SetParams lock = new SetParams().nx().px(50_000);
        check("a lock", client.set("lock", "owner", lock), "OK");
        check("a held lock", client.set("lock", "other", lock), null);
        check("eval with another value", client.eval(RELEASE, List.of("lock"), List.of("other")), 0L);
        check("eval", client.eval(RELEASE, 1, "lock", "owner"), 1L);
        check("the lock after its release", client.exists("lock"), false);
        check("scriptLoad", client.scriptLoad(RELEASE), RELEASE_SHA);
        client.set("lock", "owner", lock);
        check("evalsha", client.evalsha(RELEASE_SHA, List.of("lock"), List.of("owner")), 1L);
        checkFails("another script", () -> client.eval("return 1", 0), "ERR unknown script");
        checkFails("an unknown hash", () -> client.evalsha("f".repeat(40), 1, "lock"), "NOSCRIPT");
    }

    /** The classes that came before `RedisClient`. */
    static void testJedisPool(HostAndPort address) throws InterruptedException {
        try (JedisPool pool = new JedisPool(address.getHost(), address.getPort()); Jedis jedis = pool.getResource()) {
            check("ping", jedis.ping(), "PONG");
            check("select", jedis.select(0), "OK");
            check("flushDB", jedis.flushDB(), "OK");
            check("clientSetname", jedis.clientSetname("larder-test"), "OK");
            check("clientGetname", jedis.clientGetname(), "larder-test");
            check("set", jedis.set("key", "value"), "OK");
            // Flushed items count until the server has removed them.
            waitUntil("one item", () -> jedis.dbSize() == 1);
            check("info", jedis.info("server").contains("redis_version:"), true);
            jedis.watch("key");
            Transaction transaction = jedis.multi();
            transaction.append("key", "s");
            check("exec", transaction.exec(), List.of(6L));
        }
    }

    static void testCache(HostAndPort address) throws InterruptedException {
        try (RedisClient other = RedisClient.create(address);
                RedisClient near = RedisClient.builder().hostAndPort(address)
                    .clientConfig(DefaultJedisClientConfig.builder().protocol(RedisProtocol.RESP3).build())
                    .cacheConfig(CacheConfig.builder().maxSize(1000).build()).build()) {
            other.flushAll();
            other.mset("key", "1", "kept", "1", "a", "1", "b", "2");
            check("the first get", near.get("key"), "1");
            near.get("kept");
            check("the second get", near.get("key"), "1");
            check("mget", near.mget("a", "b"), List.of("1", "2"));
            check("the second mget", near.mget("a", "b"), List.of("1", "2"));
            check("hits", near.getCache().getStats().getHitCount(), 2L);
            check("entries", near.getCache().getSize(), 3);
            other.set("key", "2");
            other.del("b");
            waitUntil("the copy has changed", () -> "2".equals(near.get("key")));
            waitUntil("the copy of two items has changed", () -> near.mget("a", "b").get(1) == null);
            near.getCache().getAndResetStats();
            check("an item without changes", near.get("kept"), "1");
            check("hits of it", near.getCache().getStats().getHitCount(), 1L);
            near.set("key", "3");
            waitUntil("the copy has changed after its own change", () -> "3".equals(near.get("key")));
            other.psetex("key", 200, "short");
            waitUntil("the copy of the short item", () -> !"3".equals(near.get("key")));
            waitUntil("the copy has expired", () -> near.get("key") == null);
            other.flushAll();
            waitUntil("no copy after flushAll", () -> near.get("kept") == null);
        }
    }

    static void testRestart(HostAndPort address) throws Exception {
        try (RedisClient client = RedisClient.create(address)) {
            client.set("key", "value");
            restartServer();
            try {
                client.get("key");
            } catch (JedisConnectionException closed) {
                // The pool may still have had the connection that the old server has closed.
            }
            check("an item of the old server", client.get("key"), null);
            check("set after the restart", client.set("key", "value"), "OK");
        }
    }
}
