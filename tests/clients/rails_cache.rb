# Tests Rails' cache store for Redis, on the port in the first argument.

require "active_support"
require "active_support/cache"
require "active_support/cache/redis_cache_store"
require "active_support/notifications"

def check(what, got, expected)
  raise "#{what}: #{got.inspect} instead of #{expected.inspect}" unless got == expected
end

failing = ->(method:, returning:, exception:) { raise exception }
url = "redis://127.0.0.1:#{ARGV[0]}/0"
cache = ActiveSupport::Cache::RedisCacheStore.new(url: url, namespace: "app", expires_in: 60, error_handler: failing)

cache.write("object", { "x" => [1, nil] }, expires_in: 5)
check "an object", cache.read("object"), { "x" => [1, nil] }
check "a block", [cache.fetch("made") { 42 }, cache.fetch("made") { 43 }], [42, 42]
cache.write_multi("a" => 1, "b" => "two")
check "several", cache.read_multi("a", "b", "c"), { "a" => 1, "b" => "two" }
check "several made", cache.fetch_multi("a", "n") { |key| key * 2 }, { "a" => 1, "n" => "nn" }
check "numbers", [cache.increment("count"), cache.increment("count", 5), cache.decrement("count", 2)], [1, 6, 4]
check "a number with an expiry", cache.increment("visits", 1, expires_in: 30), 1
check "presence", [cache.exist?("a"), cache.exist?("none")], [true, false]
check "a deletion", [cache.delete("object"), cache.read("object")], [1, nil]
check "deletions", cache.delete_multi(%w[a b none]), 2
large = "x" * 900_000
cache.write("large", large, compress: false)
check "a large value", cache.read("large") == large, true
check "an absent key", [cache.write("once", 1, unless_exist: true), cache.write("once", 2, unless_exist: true)], [true, false]
cache.write("k" * 1500, 7)
check "a long key", cache.read("k" * 1500), 7
check "a race", cache.fetch("race", race_condition_ttl: 5, expires_in: 1) { 1 }, 1
cache.delete_matched("on*")
check "a pattern", [cache.read("once"), cache.read("made")], [nil, 42]
cache.clear
check "all", cache.read("made"), nil
puts "ActiveSupport #{ActiveSupport.version}, redis #{Redis::VERSION}: ok"
