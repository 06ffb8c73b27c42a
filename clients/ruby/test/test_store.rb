# frozen_string_literal: true

require "helper"
require "active_support"
require "active_support/cache"
require "active_support/core_ext/numeric/time"
require "active_support/notifications"
require "active_support/testing/time_helpers"
require "dalli"
require "logger"
require "open3"
require "stringio"

# Tests the requirements of ActiveSupport for cache stores.
class StoreTest < Minitest::Test
  include ActiveSupport::Testing::TimeHelpers

  def kind
    :memcached
  end

  def setup
    @server = Server.shared(kind)
    @store = store
    @store.clear
  end

  def after_teardown
    travel_back
    super
  end

  def store(**options)
    ActiveSupport::Cache.lookup_store(:larder_store, @server.address, { socket_timeout: PATIENCE, **options })
  end

  # An object with the cache keys of a record.
  Record = Struct.new(:cache_key, :cache_version)

  def test_values
    [nil, false, 1, "text", "b\xFF".b, [:a, { b: 1.5 }], "long" * 1000, "é"].each do |value|
      assert_equal true, @store.write("key", value)
      read = @store.read("key")
      value.nil? ? assert_nil(read) : assert_equal(value, read)
      assert @store.exist?("key")
    end
  end

  def test_keys
    [:sym, 1, "é ü", "a b%c\n", "x" * 300, "y" * 213 + " " * 50, ["array", 1], { a: 1 }, Record.new("record", nil)].each do |key|
      @store.write(key, key.inspect)
      assert_equal key.inspect, @store.read(key)
      assert_equal({ key => key.inspect }, @store.read_multi(key, {}))
    end
  end

  def test_fetch
    assert_equal(1, @store.fetch("key") { 1 })
    assert_equal(1, @store.fetch("key") { flunk })
    assert_equal(2, @store.fetch("key", force: true) { 2 })
    assert_nil(@store.fetch("nothing") { nil })
    assert_nil(@store.fetch("nothing") { flunk })
    assert_nil(@store.fetch("skipped", skip_nil: true) { nil })
    assert_equal(3, @store.fetch("skipped") { 3 })
    assert_nil @store.fetch("other")
  end

  def test_several
    @store.write_multi({ "a" => 1, "b" => nil }, expires_in: 60)
    assert_equal({ "a" => 1, "b" => nil }, @store.read_multi("a", "b", "c"))
    computed = @store.fetch_multi("a", "b", "c") { |name| name * 2 }
    assert_equal({ "a" => 1, "b" => nil, "c" => "cc" }, computed)
    assert_equal "cc", @store.read("c")
    assert_equal 2, @store.delete_multi(%w[a b none])
    assert_equal({ "c" => "cc" }, @store.read_multi("a", "b", "c"))
    assert_equal({}, @store.read_multi)
  end

  # The version of Rails.
  RAILS = ActiveSupport::VERSION::STRING.to_f

  def test_counting
    RAILS < 7.1 ? assert_nil(@store.increment("n")) : assert_equal(1, @store.increment("n"))
    @store.write("n", 5, raw: true)
    assert_equal 6, @store.increment("n")
    assert_equal 9, @store.increment("n", 3)
    assert_equal 8, @store.decrement("n")
    assert_equal 0, @store.decrement("n", 20)
    assert_equal "0", @store.read("n", raw: true).strip
    @store.write("word", "a", raw: true)
    assert_nil @store.increment("word")
  end

  def test_raw_values
    @store.write("key", 12, raw: true)
    assert_equal "12", @store.read("key", raw: true)
    # From Rails 7.0 on, values that are not entries are misses, as with MemCacheStore.
    RAILS < 7 ? assert_equal("12", @store.read("key")) : assert_nil(@store.read("key"))
    assert_equal({ "key" => "12" }, @store.read_multi("key", raw: true))
    @store.write("key", "text" * 2000, raw: true)
    assert_equal "text" * 2000, @store.read("key", raw: true)
  end

  def test_only_new_entries
    assert_equal true, @store.write("key", 1, unless_exist: true)
    assert_equal false, @store.write("key", 2, unless_exist: true)
    assert_equal 1, @store.read("key")
  end

  def test_removal
    @store.write("key", 1)
    assert_equal true, @store.delete("key")
    assert_equal false, @store.delete("key")
    refute @store.exist?("key")
    @store.write("key", 1)
    @store.clear
    assert_nil @store.read("key")
  end

  def test_expiry
    @store.write("key", 1, expires_in: 1.minute)
    store(expires_in: 1.minute).write("default", 1)
    travel 59.seconds
    assert_equal({ "key" => 1, "default" => 1 }, @store.read_multi("key", "default"))
    travel 2.seconds
    assert_equal({}, @store.read_multi("key", "default"))
    assert_nil @store.read("key")
  end

  def test_the_server_expires_entries_too
    @store.write("key", 1, expires_in: 0.5)
    @store.write("raw", 1, raw: true, expires_in: 1.second)
    plain = Larder::Client.new([@server.address])
    wait_until("expiry") { plain.get_multi("key", "raw").empty? }
  end

  def test_one_thread_renews_an_expired_entry
    options = { expires_in: 1.minute, race_condition_ttl: 10 }
    @store.write("key", "old", options)
    travel 61.seconds
    new = @store.fetch("key", options) do
      # Other threads get the old entry until this block returns.
      assert_equal("old", @store.fetch("key", options) { flunk })
      "new"
    end
    assert_equal "new", new
    assert_equal "new", @store.read("key")
    travel 100.seconds
    assert_equal("newest", @store.fetch("key", options) { "newest" })
  end

  def test_versions
    @store.write(Record.new("record", 1), "one")
    assert_equal "one", @store.read(Record.new("record", 1))
    assert_nil @store.read(Record.new("record", 2))
    assert_equal({}, @store.read_multi(Record.new("record", 2)))
    assert ActiveSupport::Cache::LarderStore.supports_cache_versioning?
  end

  def test_namespaces
    mine = store(namespace: "mine")
    mine.write("key", 1)
    assert_nil @store.read("key")
    assert_equal 1, @store.read("mine:key")
    assert_equal 1, @store.read("key", namespace: -> { "mine" })
  end

  def test_the_local_cache
    @store.with_local_cache do
      @store.write("key", 1, raw: true)
      @store.write("other", [1])
      Larder::Client.new([@server.address]).flush
      assert_equal "1", @store.read("key", raw: true)
      assert_equal [1], @store.read("other")
    end
    assert_nil @store.read("key")
  end

  def test_notifications
    events = []
    subscriber = ActiveSupport::Notifications.subscribe(/cache_/) { |*event| events << event.values_at(0, 4) }
    @store.read("key")
    @store.write("key", 1)
    @store.fetch("key") { flunk }
    names = %w[read write read fetch_hit].map { |name| "cache_#{name}.active_support" }
    assert_equal names, events.map(&:first)
    assert_equal [false, nil, true, nil], events.map { |_, payload| payload[:hit] }
  ensure
    ActiveSupport::Notifications.unsubscribe(subscriber)
  end

  def test_without_a_server
    server = FakeServer.new { nil }
    address = server.address
    server.stop
    log = StringIO.new
    down = ActiveSupport::Cache::LarderStore.new(address)
    down.logger = Logger.new(log)
    assert_nil down.read("key")
    refute down.write("key", 1)
    assert_equal(1, down.fetch("key") { 1 })
    assert_equal({}, down.read_multi("key"))
    assert_equal false, down.delete("key")
    assert_nil down.increment("key")
    assert_nil down.clear
    assert_match(/Larder::RingError: #{address}/, log.string)
  ensure
    ActiveSupport::Cache::Store.logger = nil
  end

  def test_clients_and_options
    client = Larder::Client.new([@server.address])
    by_client = ActiveSupport::Cache::LarderStore.new(client, namespace: "mine")
    by_client.write("key", 1)
    assert_equal 1, @store.read("mine:key")
    assert_equal [@server.address], by_client.stats.keys
    assert_raises(ArgumentError) { store(pool_size: 5) }
    with_options = store(pool: 2, password: "secret", expires_in: 1.day, race_condition_ttl: 5, skip_nil: true)
    with_options.write("key", 1)
    assert_equal 1, @store.read("key")
    assert_nil(with_options.fetch("nil") { nil })
    assert_equal(2, with_options.fetch("nil") { 2 })
    refute_match(/secret/, with_options.inspect)
  end

  def test_mem_cache_store_and_this_store_read_each_others_entries
    theirs = ActiveSupport::Cache::MemCacheStore.new(@server.address)
    [theirs, @store].permutation do |writer, reader|
      [nil, 1, "text", [:a], "long" * 1000].each do |value|
        ["key", "é ü", "a b%c\n\x05", "x" * 300, Record.new("record", "7")].each do |key|
          writer.write(key, [value], expires_in: 1.hour)
          assert_equal [value], reader.read(key)
        end
      end
      writer.write("n", 5, raw: true)
      assert_equal 6, reader.increment("n")
      assert_equal "6", reader.read("n", raw: true)
    end
  end
  # Turns ActiveSupport 6.1 into a later version, as far as the store's class body depends on the version: Rails 7.1 has
  # removed NullCoder and added DeserializationError.
  LATER_RAILS = <<~RUBY
    require "active_support"
    require "active_support/cache"
    major, minor = ARGV.first.split(".").map(&:to_i)
    version = ActiveSupport::VERSION
    { MAJOR: major, MINOR: minor, STRING: ARGV.first }.each do |name, value|
      version.send(:remove_const, name)
      version.const_set(name, value)
    end
    if version::STRING.to_f >= 7.1
      ActiveSupport::Cache.send(:remove_const, :NullCoder)
      ActiveSupport::Cache.const_set(:DeserializationError, Class.new(StandardError))
    end
    require "active_support/cache/larder_store"
    store = ActiveSupport::Cache.lookup_store(:larder_store, ARGV.last, { socket_timeout: 60 })
    store.delete("n")
    print [store.increment("n", 2), ActiveSupport::Cache::LarderStore.const_defined?(:DEFAULT_CODER, false)].inspect
  RUBY

  # LARDER_RAILS of scripts/test-ruby runs all tests with these versions. This test needs only ActiveSupport 6.1.
  def test_the_store_loads_with_the_constants_of_later_versions
    skip "needs ActiveSupport 6.1" unless RAILS < 7

    lib = File.expand_path("../lib", __dir__)
    { "7.0.10" => "[nil, false]", "7.1.6" => "[2, false]", "8.1.3" => "[2, false]" }.each do |version, expected|
      output, = Open3.capture2e(RbConfig.ruby, "-I", lib, "-e", LATER_RAILS, version, @server.address)
      assert_equal expected, output
    end
  end
end

# The same tests with larderd.
class LarderdStoreTest < StoreTest
  def kind
    :larderd
  end
end
