# frozen_string_literal: true

require "helper"
require "json"

# Tests all calls with each kind of server.
module ClientTests
  def setup
    @server = Server.shared(kind)
    @cache = client
    @cache.flush
  end

  def client(**options)
    Larder::Client.new([@server.address], socket_timeout: PATIENCE, **options)
  end

  def test_objects_survive_a_round_trip
    [nil, 1, "text", "b\xFF\0".b, :name, { a: [1.5, nil] }, "é" * 5000, Time.at(0), ""].each do |object|
      assert_equal true, @cache.set("key", object)
      value = @cache.get("key")
      object.nil? ? assert_nil(value) : assert_equal(object, value)
    end
  end

  def test_absent_keys_are_nil
    assert_nil @cache.get("none")
    assert_nil @cache.gat("none", 5)
    assert_nil @cache.delete("none")
    assert_nil @cache.touch("none", 5)
    assert_nil @cache.incr("none")
    assert_nil @cache.decr("none")
    assert_equal [nil, 0], @cache.get_cas("none")
    assert_same Larder::NOT_FOUND, @cache.get("none", cache_nils: true)
    assert_equal({}, @cache.get_multi("none"))
    assert_equal({}, @cache.get_multi)
  end

  def test_add_replace_delete
    assert_equal false, @cache.replace("key", 1)
    assert_equal true, @cache.add("key", 1)
    assert_equal false, @cache.add("key", 2)
    assert_equal true, @cache.replace("key", 3)
    assert_equal 3, @cache.get("key")
    assert_equal true, @cache.delete("key")
    assert_nil @cache.get("key")
  end

  def test_raw_values_are_strings
    @cache.set("key", 12, 0, raw: true)
    assert_equal "12", @cache.get("key")
    assert_equal true, @cache.append("key", 3)
    assert_equal true, @cache.prepend("key", "0")
    assert_equal "0123", @cache.get("key")
    assert_equal false, @cache.append("none", "x")
    assert_equal false, @cache.prepend("none", "x")
    raw = client(raw: true)
    raw.set("key", :text)
    assert_equal "text", raw.get("key")
    raw.set("key", :text, 0, raw: false)
    assert_equal :text, raw.get("key")
  end

  def test_counting
    assert_equal 10, @cache.incr("n", 1, 0, 10)
    assert_equal 12, @cache.incr("n", 2)
    assert_equal 0, @cache.decr("n", 20)
    assert_equal 7, @cache.decr("m", 1, 0, 7)
    assert_equal "7", @cache.get("m")
    @cache.set("n", (2**64 - 1).to_s, 0, raw: true)
    assert_equal 0, @cache.incr("n")
    assert_raises(ArgumentError) { @cache.incr("n", -1) }
    @cache.set("word", "a", 0, raw: true)
    assert_raises(Larder::Error) { @cache.incr("word") }
  end

  def test_get_multi
    @cache.set("a", 1)
    @cache.set("b", nil)
    expected = { "a" => 1, "b" => nil }
    assert_equal expected, @cache.get_multi(:a, "b", "c")
    assert_equal expected, @cache.get_multi([%w[a b], nil], "c")
    yielded = {}
    assert_nil(@cache.get_multi("a", "b", "c") { |key, value| yielded[key] = value })
    assert_equal expected, yielded
    assert_equal [1, @cache.get_cas("a").last], @cache.get_multi_cas("a")["a"]
    many = (0...250).to_h { |n| ["key#{n}", n] }
    many.each { |key, value| @cache.set(key, value) }
    assert_equal many, @cache.get_multi(many.keys)
  end

  def test_compare_and_swap
    assert_nil(@cache.cas("key") { flunk })
    assert_equal true, (@cache.cas!("key") { |value| [value, 1] })
    assert_equal [nil, 1], @cache.get("key")
    assert_equal true, (@cache.cas("key") { |value| value + [2] })
    assert_equal [nil, 1, 2], @cache.get("key")
    changed = @cache.cas("key") do
      @cache.set("key", "other")
      "mine"
    end
    assert_equal false, changed
    created = @cache.cas!("new") do
      @cache.set("new", "other")
      "mine"
    end
    assert_equal false, created
    _, cas = @cache.get_cas("key")
    assert_equal false, @cache.set_cas("key", 1, cas + 1)
    assert_equal true, @cache.set_cas("key", 1, cas)
    assert_equal true, @cache.set_cas("key", 2, 0)
    assert_nil @cache.replace_cas("none", 1, 5)
    assert_equal false, @cache.replace_cas("none", 1, 0)
    @cache.get_cas("key") do |value, now|
      assert_equal 2, value
      assert_equal true, @cache.replace_cas("key", 3, now)
      assert_equal false, @cache.delete_cas("key", now)
    end
    assert_equal true, @cache.delete_cas("key", @cache.get_cas("key").last)
    assert_equal false, @cache.delete_cas("key")
  end

  def test_fetch
    assert_nil @cache.fetch("key")
    assert_equal 1, (@cache.fetch("key", 60) { 1 })
    assert_equal 1, (@cache.fetch("key") { flunk })
    @cache.set("nothing", nil)
    assert_equal 2, (@cache.fetch("nothing") { 2 })
    nils = client(cache_nils: true)
    assert_nil(nils.fetch("nothing") { flunk })
    assert_equal 3, (nils.fetch("other") { 3 })
  end

  def test_expiry
    @cache.set("short", 1, 1)
    @cache.set("half", 1, 0.5)
    client(expires_in: 1).set("default", 1)
    @cache.set("month", 1, 40 * 24 * 3600)
    @cache.set("date", 1, Time.now.to_i + 3600)
    @cache.set("touched", 1, 3600)
    @cache.touch("touched", 1)
    @cache.set("got", 1, 3600)
    assert_equal 1, @cache.gat("got", 1)
    keys = %w[short half default month date touched got]
    left = %w[month date]
    wait_until("expiry") { @cache.get_multi(keys).keys == left }
    assert_raises(ArgumentError) { @cache.set("key", 1, -1) }
    assert_raises(ArgumentError) { @cache.set("key", 1, Object.new) }
  end

  def test_keys
    ["k", :sym, 5, "é", "a b", "x" * 250, "y" * 300, "long #{'z' * 150}"].each do |key|
      @cache.set(key, key.to_s)
      assert_equal key.to_s, @cache.get(key)
      assert_equal({ key.to_s => key.to_s }, @cache.get_multi(key))
    end
    assert_raises(ArgumentError) { @cache.get("") }
    assert_raises(ArgumentError) { @cache.get(nil) }
    # Meta commands carry keys with blanks in base64, and 250 bytes of base64 hold 186 bytes.
    assert_equal true, @cache.set("a #{'b' * 184}", 1)
    assert_equal 1, @cache.get("a #{'b' * 184}")
    [185, 248, 249].each do |rest|
      error = assert_raises(ArgumentError) { @cache.get("a #{'b' * rest}") }
      assert_match(/at most 186 can be sent/, error.message)
    end
  end

  def test_namespaces
    mine = client(namespace: "mine")
    mine.set("key", 1)
    mine.set("k" * 300, 2)
    assert_nil @cache.get("key")
    assert_equal 1, @cache.get("mine:key")
    assert_equal({ "key" => 1, "k" * 300 => 2 }, mine.get_multi("key", "k" * 300))
    assert_equal 1, client(namespace: -> { :mine }).get("key")
  end

  def test_too_long_and_unserializable_values
    assert_raises(Larder::ValueOverMaxSize) { @cache.set("key", Random.bytes(1 << 20)) }
    assert_equal true, @cache.set("key", "x" * (2 << 20))
    assert_raises(Larder::ValueOverMaxSize) { client(value_max_bytes: 10).set("key", "x" * 10) }
    assert_raises(Larder::MarshalError) { @cache.set("key", proc {}) }
    assert_equal "x" * (2 << 20), @cache.get("key")
  end

  def test_unreadable_values
    raw = client(serializer: Class.new { def self.dump(text) = text })
    ["not marshalled", Marshal.dump(1)[0..1], "\x04\x08o:\x0BNoClass\0"].each do |text|
      raw.set("key", text)
      assert_raises(Larder::UnmarshalError) { @cache.get("key") }
    end
    strange = client(compression_min_size: 0, compressor: Class.new { def self.compress(_) = "" })
    strange.set("key", 1)
    assert_raises(Larder::UnmarshalError) { @cache.get("key") }
  end

  def test_compression
    text = "text" * 2000
    [client, client(compressor: Larder::GzipCompressor)].each do |cache|
      cache.set("key", text)
      assert_equal text, cache.get("key")
    end
    assert_operator stored_length(text), :<, 100
    assert_operator stored_length(text, compress: false), :>, 8000
    assert_operator stored_length("text"), :<, 20
    noise = Random.bytes(5000)
    assert_operator stored_length(noise), :>, 5000
  end

  def test_serializers
    json = client(serializer: JSON)
    json.set("key", { "a" => [1] })
    assert_equal({ "a" => [1] }, json.get("key"))
    assert_raises(Larder::UnmarshalError) { @cache.get("key") }
  end

  def test_blocks_without_effect
    assert_equal(7, @cache.multi { @cache.set("a", 1) && 7 })
    assert_equal(1, @cache.quiet { @cache.get("a") })
    assert_same(@cache, @cache.with { |cache| cache })
  end

  def test_flush_and_statistics
    @cache.set("key", 1)
    assert_equal [true], @cache.flush_all
    assert_nil @cache.get("key")
    assert_match(/\A\d+\.\d+/, @cache.version[@server.address])
    assert_operator @cache.stats[@server.address]["cmd_set"].to_i, :>, 0
    assert_operator @cache.stats(:settings)[@server.address].size, :>, 3
    assert_equal [true], @cache.reset_stats
    assert_equal "0", @cache.stats[@server.address]["cmd_set"]
    assert_same @cache, @cache.alive!
  end

  def test_a_closed_client_opens_new_connections
    @cache.set("key", 1)
    @cache.close
    assert_equal 1, @cache.get("key")
  end

  private

  # Stores a value. Returns the length of the stored bytes, which the server reports to a lookup over a plain socket.
  def stored_length(value, **options)
    @cache.set("length", value, 0, options)
    TCPSocket.open("127.0.0.1", @server.port) do |socket|
      socket.write("get length\r\n")
      socket.gets.split.last.to_i
    end
  end
end

class LarderdTest < Minitest::Test
  include ClientTests
  def kind = :larderd
end

class MemcachedTest < Minitest::Test
  include ClientTests
  def kind = :memcached
end

class SettingsTest < Minitest::Test
  def test_servers
    [[], "", 5, [:a]].each { |servers| assert_raises(ArgumentError) { Larder::Client.new(servers) } }
    error = assert_raises(ArgumentError) { Larder::Client.new("memcached://user:secret@cache") }
    refute_match(/secret/, error.message)
  end

  def test_addresses_have_ports_weights_and_schemes
    server = Server.shared(:memcached)
    address = server.address
    [address, "#{address}:5", " #{address},", "memcached://#{address}", "memcached://#{address}/"].each do |text|
      assert_equal [address], Larder::Client.new(text).version.keys
    end
    ENV["MEMCACHE_SERVERS"] = address
    assert_equal [address], Larder::Client.new.version.keys
    list = Larder.const_get(:Servers)
    assert_equal [["cache:11211", 1], ["cache:11211", 3], ["[::1]:5", 2], ["[::1]:11211", 1], ["/run/socket", 1], ["/run/socket", 4]],
                 list.parse("cache,cache:11211:3,[::1]:5:2,[::1],/run/socket,/run/socket:4")
  ensure
    ENV.delete("MEMCACHE_SERVERS")
  end

  def test_unknown_options_are_refused
    error = assert_raises(ArgumentError) { Larder::Client.new("cache", threadsafe: true) }
    assert_match(/threadsafe/, error.message)
    assert_raises(ArgumentError) { Larder::Client.new("cache", socket_timeout: -1) }
    assert_raises(ArgumentError) { Larder::Client.new("cache", expires_in: -1) }
    assert_raises(ArgumentError) { Larder::Client.new("cache", digest_class: Object) }
  end
end
