<?php
// Tests Laravel's cache, on the port in the first argument, with the client in the second (phpredis or predis).

error_reporting(E_ALL & ~E_DEPRECATED);
set_error_handler(function ($level, $message, $file, $line) {
    if (error_reporting() & $level) {
        throw new ErrorException($message, 0, $level, $file, $line);
    }
});

require_once "Illuminate/Cache/autoload.php";
require_once "Illuminate/Redis/autoload.php";

use Illuminate\Cache\RateLimiter;
use Illuminate\Cache\RedisStore;
use Illuminate\Cache\Repository;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Illuminate\Redis\RedisManager;

[, $port, $client] = $argv;

function check($subject, $got, $expected)
{
    if ($got !== $expected) {
        throw new Exception("$subject: " . var_export($got, true) . " instead of " . var_export($expected, true));
    }
}

function check_between($subject, $got, $low, $high)
{
    if (!is_int($got) || $got < $low || $got > $high) {
        throw new Exception("$subject: " . var_export($got, true) . " instead of $low to $high");
    }
}

// Returns the server's error. phpredis does not throw it.
function error_of($redis, $call)
{
    try {
        $call();
    } catch (Exception $error) {
    }
    return $redis->client() instanceof Redis ? $redis->client()->getLastError() : $error?->getMessage();
}

$options = ["default" => ["host" => "127.0.0.1", "port" => (int) $port], "options" => ["prefix" => "app_"]];
$manager = new RedisManager(null, $client, $options);
$store = new RedisStore($manager, "cache");
$cache = new Repository($store);
$redis = $manager->connection();

function test_items($cache, $redis)
{
    $object = ["a" => [1, null], "b" => "text \0 \xff"];
    check("flush", $cache->flush(), true);
    check("put", $cache->put("object", $object, 100), true);
    check("get", $cache->get("object"), $object);
    check_between("the expiry of put", $redis->ttl("cache:object"), 99, 100);
    check("get of an absent key", $cache->get("absent"), null);
    check("get with a default", $cache->get("absent", "default"), "default");
    check("has", [$cache->has("object"), $cache->has("absent")], [true, false]);
    check("missing", [$cache->missing("object"), $cache->missing("absent")], [false, true]);
    check("forever", $cache->forever("permanent", "value"), true);
    check("no expiry after forever", $redis->ttl("cache:permanent"), -1);
    check("pull", [$cache->pull("permanent"), $cache->get("permanent")], ["value", null]);
    check("forget", [$cache->forget("object"), $cache->forget("object"), $cache->get("object")], [true, false, null]);
    check("putMany", $cache->putMany(["one" => 1, "two" => "second", "three" => [3]], 100), true);
    check_between("the expiry of putMany", $redis->ttl("cache:two"), 99, 100);
    check("many", $cache->many(["one", "absent", "two", "three"]), [
        "one" => "1", "absent" => null, "two" => "second", "three" => [3],
    ]);
    check("put of an expired item", [$cache->put("one", 1, 0), $cache->get("one")], [true, null]);
    $large = str_repeat("x", 900_000);
    check("a large value", [$cache->put("large", $large, 100), $cache->get("large") === $large], [true, true]);
    check("an expiry of one second", $cache->put("short", "value", 1), true);
    for ($waited = 0; $cache->has("short"); $waited++) {
        check("the item has expired within ten seconds", $waited < 200, true);
        usleep(50_000);
    }
}

function test_add($cache, $redis)
{
    check("add", $cache->add("added", "first", 100), true);
    check("add of an existing key", $cache->add("added", "second", 200), false);
    check("the value after add", $cache->get("added"), "first");
    check_between("the expiry of add", $redis->ttl("cache:added"), 99, 100);
    check("add without an expiry", [$cache->add("lasting", 5), $cache->add("lasting", 6)], [true, false]);
    check("no expiry", $redis->ttl("cache:lasting"), -1);
}

function test_numbers($cache, $redis)
{
    check("increment", [$cache->increment("count"), $cache->increment("count", 9)], [1, 10]);
    check("decrement", [$cache->decrement("count", 4), $cache->decrement("count")], [6, 5]);
    check("the number", $cache->get("count"), "5");
    check("put of a number", $cache->put("visits", 41, 100), true);
    check("increment after put", $cache->increment("visits"), 42);
    check_between("the expiry after increment", $redis->ttl("cache:visits"), 99, 100);
}

function test_remember($cache)
{
    $calls = 0;
    $compute = function () use (&$calls) {
        return ["computed" => ++$calls];
    };
    check("remember", $cache->remember("computed", 100, $compute), ["computed" => 1]);
    check("remember again", $cache->remember("computed", 100, $compute), ["computed" => 1]);
    check("rememberForever", $cache->rememberForever("forever", $compute), ["computed" => 2]);
    check("rememberForever again", $cache->rememberForever("forever", $compute), ["computed" => 2]);
}

function test_locks($cache, $redis)
{
    $lock = $cache->lock("lock", 100);
    $other = $cache->lock("lock", 100);
    check("get of a lock", [$lock->get(), $other->get()], [true, false]);
    check_between("the expiry of a lock", $redis->ttl("cache:lock"), 99, 100);
    check("release by another owner", $other->release(), false);
    check("the lock is still held", $other->get(), false);
    $restored = $cache->restoreLock("lock", $lock->owner());
    check("release by the restored lock", [$restored->release(), $lock->release()], [true, false]);
    check("a callback with the lock", $other->get(fn () => "result"), "result");
    check("get after release", [$lock->get(), $other->get()], [true, false]);
    check("a callback without the lock", $other->get(fn () => "result"), false);
    $timeout = null;
    try {
        $other->block(1);
    } catch (LockTimeoutException $timeout) {
    }
    check("block has timed out", $timeout !== null, true);
    $other->forceRelease();
    check("block", $other->block(1, fn () => "result"), "result");
    $short = $cache->lock("short lock", 1);
    check("get of a short lock", $short->get(), true);
    check("block until a lock has expired", $cache->lock("short lock", 100)->block(30), true);
    check("release of an expired lock", $short->release(), false);
    $lasting = $cache->lock("lasting lock");
    check("a lock without an expiry", [$lasting->get(), $cache->lock("lasting lock")->get()], [true, false]);
    check("no expiry", $redis->ttl("cache:lasting lock"), -1);
    check("release of a lock without an expiry", [$lasting->release(), $lasting->get()], [true, true]);
}

function test_rate_limiter($cache)
{
    $limiter = new RateLimiter($cache);
    $attempts = array_map(fn () => $limiter->attempt("user", 3, fn () => "done", 100), range(1, 5));
    check("attempts", $attempts, ["done", "done", "done", false, false]);
    check("too many attempts", $limiter->tooManyAttempts("user", 3), true);
    check("a higher limit", $limiter->tooManyAttempts("user", 4), false);
    check("retries that are left", $limiter->retriesLeft("user", 5), 2);
    check_between("seconds until an attempt", $limiter->availableIn("user"), 98, 100);
    $limiter->clear("user");
    check("attempts after clear", [$limiter->attempts("user"), $limiter->hit("user", 100)], [0, 1]);
}

// Tags need sets. Limiters of Laravel's Redis facade need hashes, and scripts with several keys.
function test_limits($cache, $redis)
{
    $error = error_of($redis, fn () => $cache->tags("tag")->put("tagged", "value", 100));
    check("tags", stripos($error, "ERR unknown command 'sadd'") === 0, true);
    $error = error_of($redis, fn () => $redis->throttle("limited")->allow(1)->every(100)->block(0)->then(fn () => 1));
    check("throttle", str_starts_with($error, "ERR unknown script"), true);
    $error = error_of($redis, fn () => $redis->funnel("limited")->limit(1)->block(0)->then(fn () => 1));
    check("funnel", str_starts_with($error, "ERR unknown script"), true);
}

test_items($cache, $redis);
test_add($cache, $redis);
test_numbers($cache, $redis);
test_remember($cache);
test_locks($cache, $redis);
test_rate_limiter($cache);
test_limits($cache, $redis);
check("flush", [$cache->flush(), $cache->get("added")], [true, null]);
echo "ok\n";
