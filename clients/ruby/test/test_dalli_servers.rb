# frozen_string_literal: true

require "helper"
require "dalli"
require "tempfile"

Dalli.logger.level = Logger::FATAL

# Tests that dalli works with larderd as with memcached. dalli 3.0 has only the binary protocol.
module DalliServerTests
  KEYS = (0...200).map { |n| "key#{n}" }.freeze

  def setup
    @server = Server.shared(kind)
    @cache = dalli
    @cache.flush
  end

  def teardown
    @cache.close
    @started&.each(&:stop)
  end

  def dalli(address = @server.address, **options)
    Dalli::Client.new(address, { socket_timeout: PATIENCE, **options })
  end

  def start(count, *options)
    @started = Array.new(count) { Server.new(kind, *options) }
  end

  # Returns the number of items that a server has.
  def items(server)
    dalli(server.address).get_multi(KEYS).size
  end

  def test_strings
    assert_nil @cache.get("key")
    assert @cache.set("key", "value", nil, raw: true)
    assert_equal false, @cache.add("key", "other")
    assert @cache.append("key", " end")
    assert @cache.prepend("key", "start ")
    assert_equal "start value end", @cache.get("key")
    assert @cache.replace("key", { "a" => [1, nil] })
    assert_equal({ "a" => [1, nil] }, @cache.get("key"))
    assert_equal true, @cache.delete("key")
    # dalli returns nil for missing items, and false for items that were not stored.
    assert_nil @cache.delete("key")
    assert_equal false, @cache.append("key", "x")
    assert_equal 0, @cache.replace("key", 1)
    assert @cache.add("key", "added")
    assert_equal "added", @cache.get("key")
  end

  def test_keys
    ["with blank", "é", "\x00\x01\r\n", "k" * 250, "k" * 251].each do |key|
      assert @cache.set(key, key)
      assert_equal key, @cache.get(key)
      assert_equal [key], @cache.get_multi(key, "missing").values
    end
  end

  def test_several_keys_at_once
    values = KEYS.to_h { |key| [key, key * 100] }
    values.each { |key, value| @cache.set(key, value) }
    assert_equal values, @cache.get_multi(KEYS + ["missing"])
    assert_equal({}, @cache.get_multi("missing", "lost"))
    assert_equal({}, @cache.get_multi)
  end

  def test_quiet_requests
    @cache.set("gone", 1)
    @cache.multi do
      KEYS.each { |key| @cache.set(key, "1", nil, raw: true) }
      # Errors of quiet requests have replies, which dalli ignores.
      @cache.add("key0", 5)
      @cache.replace("missing", 5)
      @cache.delete("gone")
    end
    assert_equal "1", @cache.get("key0")
    assert_equal KEYS.sort, @cache.get_multi(KEYS + %w[gone missing]).keys.sort
  end

  def test_cas
    assert_nil(@cache.cas("key") { flunk })
    @cache.set("key", 1)
    assert(@cache.cas("key") { |value| value + 1 })
    assert_equal 2, @cache.get("key")
    # Another client changes the item between the lookup and the store.
    assert_equal(false, @cache.cas("key") { dalli.set("key", 10) && 3 })
    assert_equal 10, @cache.get("key")
    value, cas = @cache.get_cas("key")
    assert_equal 10, value
    assert_equal({ "key" => [10, cas] }, @cache.get_multi_cas("key", "missing"))
    changed = @cache.set_cas("key", 11, cas)
    assert_operator changed, :>, 0
    assert_equal false, @cache.set_cas("key", 12, cas)
    assert_equal false, @cache.replace_cas("key", 12, cas)
    assert_equal false, @cache.delete_cas("key", cas)
    replaced = @cache.replace_cas("key", 13, changed)
    refute_equal changed, replaced
    assert_equal [13, replaced], @cache.get_cas("key")
    assert_equal true, @cache.delete_cas("key", replaced)
    assert_nil @cache.get("key")
  end

  def test_counters
    assert_nil @cache.incr("n")
    assert_equal 5, @cache.incr("n", 2, nil, 5)
    assert_equal 7, @cache.incr("n", 2, nil, 5)
    assert_equal 4, @cache.decr("n", 3)
    assert_equal 0, @cache.decr("n", 9)
    @cache.set("big", (2**64 - 1).to_s, nil, raw: true)
    assert_equal 0, @cache.incr("big")
    @cache.set("word", "a", nil, raw: true)
    assert_match(/non-numeric/, assert_raises(Dalli::DalliError) { @cache.incr("word") }.message)
  end

  def test_expiry
    @cache.set("set", 1, 1)
    @cache.incr("counter", 1, 1, 1)
    @cache.set("touched", 1, 1)
    @cache.set("fetched", 1, 1)
    @cache.set("by date", 1, 40 * 24 * 3600)
    assert_equal true, @cache.touch("touched", 600)
    assert_equal 1, @cache.gat("fetched", 600)
    assert_nil @cache.touch("missing", 600)
    assert_nil @cache.gat("missing", 600)
    wait_until("expiry") { @cache.get_multi("set", "counter").empty? }
    assert_equal [1] * 3, @cache.get_multi("touched", "fetched", "by date").values
  end

  def test_flush
    KEYS.each { |key| @cache.set(key, 1) }
    assert_equal [true], @cache.flush
    assert_empty @cache.get_multi(KEYS)
    @cache.set("key", 1)
    assert_equal 1, @cache.get("key")
  end

  def test_compression
    long = "text" * 10_000
    [Dalli::Compressor, Dalli::GzipCompressor].each do |compressor|
      cache = dalli(compress: true, compressor: compressor)
      cache.set("key", long)
      assert_equal long, cache.get("key")
      stored = Larder::Client.new(@server.address, compress: false).get("key") if compressor == Dalli::Compressor
      assert_equal long, stored if stored
    end
    noise = Random.bytes(900_000)
    @cache.set("noise", noise)
    assert_equal noise, @cache.get("noise")
    assert_raises(Dalli::ValueOverMaxSize) { @cache.set("noise", Random.bytes(2**20)) }
  end

  def test_namespaces
    mine = dalli(namespace: "mine")
    mine.set("key", 1)
    assert_nil @cache.get("key")
    assert_equal 1, @cache.get("mine:key")
    assert_equal({ "key" => 1 }, mine.get_multi("key"))
  end

  def test_fetch
    assert_equal(1, @cache.fetch("key") { 1 })
    assert_equal(1, @cache.fetch("key") { flunk })
  end

  def test_statistics
    address = @server.address
    assert_match(/\A\d+\.\d+/, @cache.version.fetch(address))
    @cache.set("key", 1)
    assert_operator @cache.stats.fetch(address)["curr_items"].to_i, :>, 0
    assert_includes @cache.stats(:settings).fetch(address).keys, "maxbytes"
    assert(@cache.stats(:items).fetch(address).keys.any? { |name| name.start_with?("items:") })
    assert_includes @cache.stats(:slabs).fetch(address).keys, "total_malloced"
    assert_equal [true], @cache.reset_stats
    assert_equal "0", @cache.stats.fetch(address)["cmd_set"]
    @cache.alive!
  end

  def test_the_ring
    addresses = start(3).map(&:address)
    cache = dalli(addresses)
    KEYS.each { |key| cache.set(key, key) }
    ring = cache.send(:ring)
    owners = KEYS.group_by { |key| ring.server_for_key(key).name }
    assert_equal addresses.sort, owners.keys.sort
    @started.each do |server|
      assert_equal owners[server.address], dalli(server.address).get_multi(KEYS).keys
    end
    assert_equal KEYS.to_h { |key| [key, key] }, cache.get_multi(KEYS)
    assert_equal [true] * 3, cache.flush
    assert_equal [0] * 3, @started.map { |server| items(server) }
  end

  def test_failover
    start(2)
    cache = dalli(@started.map(&:address), down_retry_delay: 0.1, socket_max_failures: 0)
    KEYS.each { |key| cache.set(key, "old") }
    dead = @started.first
    lost = items(dead)
    dead.kill
    # The keys of the dead server are misses on the other server, which then stores them.
    assert_equal lost, KEYS.count { |key| cache.get(key).nil? }
    assert_equal KEYS.size - lost, cache.get_multi(KEYS).size
    KEYS.each { |key| assert cache.set(key, "new") }
    assert_equal KEYS.to_h { |key| [key, "new"] }, cache.get_multi(KEYS)
    dead.start
    wait_until("the return of the keys") { KEYS.each { |key| cache.set(key, "newer") } && items(dead) == lost }
    assert_equal KEYS.to_h { |key| [key, "newer"] }, cache.get_multi(KEYS)
  end

  def test_without_failover
    start(2)
    cache = dalli(@started.map(&:address), failover: false, socket_max_failures: 0)
    KEYS.each { |key| cache.set(key, 1) }
    lost = items(@started.first)
    @started.first.kill
    assert_raises(Dalli::RingError) { KEYS.each { |key| cache.get(key) } }
    assert_equal KEYS.size - lost, cache.get_multi(KEYS).size
  end

  def test_a_restart_of_the_server
    server = start(1).first
    cache = dalli(server.address)
    cache.set("key", 1)
    server.kill
    assert_raises(Dalli::DalliError) { cache.get("key") }
    server.start
    wait_until("the return of the server") do
      cache.reset
      cache.set("key", 2)
    rescue Dalli::DalliError
      false
    end
    assert_equal 2, cache.get("key")
  end

  def test_threads
    threads = Array.new(8) do |thread|
      Thread.new do
        50.times.all? do |n|
          @cache.set("#{thread} #{n}", n)
          @cache.get("#{thread} #{n}") == n
        end
      end
    end
    assert_equal [true] * 8, threads.map(&:value)
  end
end

# dalli with larderd.
class DalliLarderdTest < Minitest::Test
  include DalliServerTests

  def kind
    :larderd
  end

  def test_logins
    Tempfile.create("passwords") do |file|
      file.write("ann:first\n")
      file.close
      # The server runs as another user, which must be able to read the file.
      File.chmod(0o644, file.path)
      server = start(1, "-S", "--sasl-pwdb", file.path).first
      cache = dalli(server.address, username: "ann", password: "first")
      cache.set("key", 1)
      assert_equal({ "key" => 1 }, cache.get_multi("key"))
      assert_equal "1", cache.stats.fetch(server.address)["auth_cmds"]
      wrong = dalli(server.address, username: "ann", password: "second")
      assert_match(/Error authenticating/, assert_raises(Dalli::DalliError) { wrong.get("key") }.message)
      assert_raises(Dalli::DalliError) { dalli(server.address).get("key") }
    end
  end
end

# dalli with memcached: the same tests, so that their expectations are those of memcached.
class DalliMemcachedTest < Minitest::Test
  include DalliServerTests

  def kind
    :memcached
  end
end
