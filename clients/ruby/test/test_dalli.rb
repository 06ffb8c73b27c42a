# frozen_string_literal: true

require "helper"
require "dalli"

Dalli.logger.level = Logger::FATAL

# Tests that dalli and this client can read each other's values. dalli uses the binary protocol.
class DalliTest < Minitest::Test
  OBJECTS = [nil, 1, 2**80, "text", "\xFF\0".b, :name, { a: [1.5, nil] }, "long text" * 1000, Random.bytes(5000)].freeze
  KEYS = ["key", "with blank", "é", "k" * 249, "k" * 250, "k" * 251, "k" * 400].freeze

  def kind
    :memcached
  end

  def clients(**options)
    address = Server.shared(kind).address
    [Larder::Client.new([address], socket_timeout: PATIENCE, **options), Dalli::Client.new([address], options)]
  end

  def both_directions(**options)
    clients(**options).permutation { |writer, reader| yield writer, reader }
  end

  def test_values
    [{}, { compress: false }, { compression_min_size: 1 }, { namespace: "ns" }].each do |options|
      both_directions(**options) do |writer, reader|
        OBJECTS.each do |object|
          writer.set("key", object)
          value = reader.get("key")
          object.nil? ? assert_nil(value) : assert_equal(object, value, options.inspect)
        end
      end
    end
  end

  def test_several_values_at_once
    ours, theirs = clients
    values = OBJECTS.each_with_index.to_h { |object, index| ["many#{index}", object] }
    assert_nil ours.set_multi(values, 60)
    assert_equal values.compact, theirs.get_multi(*values.keys).compact
    assert_equal values.size, ours.delete_multi(values.keys + ["missing"])
    assert_empty theirs.get_multi(*values.keys)
    assert_nil ours.set_multi({})
    assert_equal 0, ours.delete_multi([])
    ours.set_multi({ raw: 12 }, nil, raw: true)
    assert_equal "12", theirs.get("raw")
    assert_raises(Larder::ValueOverMaxSize) { ours.set_multi({ a: 1, big: "x" * 2**21 }, nil, raw: true, compress: false) }
  end

  def test_raw_values_and_counters
    both_directions do |writer, reader|
      writer.set("key", 12, 0, raw: true)
      assert_equal "12", reader.get("key")
      writer.delete("n")
      writer.incr("n", 1, 0, 5)
      assert_equal 6, reader.incr("n")
    end
  end

  def test_gzip
    ours, = clients(compressor: Larder::GzipCompressor)
    _, theirs = clients(compressor: Dalli::GzipCompressor)
    [ours, theirs].permutation do |writer, reader|
      writer.set("key", "text" * 2000)
      assert_equal "text" * 2000, reader.get("key")
    end
  end

  def test_keys
    [{}, { namespace: "ns" }].each do |options|
      both_directions(**options) do |writer, reader|
        KEYS.each do |key|
          writer.set(key, key)
          assert_equal key, reader.get(key)
        end
      end
    end
  end

  def test_results
    both_directions do |one, other|
      [one, other].each(&:flush)
      results = [one, other].map do |cache|
        cache.flush
        [cache.get("a"), !!cache.set("a", 1), !!cache.add("a", 2), cache.get_multi("a", "b"), cache.delete("b"),
         cache.touch("a", 60), cache.touch("b", 60), cache.gat("a", 5), cache.incr("b"), cache.append("b", "x"),
         cache.get_cas("b"), cache.cas("b") { 1 }, !!cache.cas("a") { 5 }, cache.get("a"), cache.delete("a"),
         cache.fetch("f") { 7 }, cache.get("f"), cache.delete_cas("f", 1 << 40), cache.version, cache.stats.keys]
      end
      assert_equal(*results)
    end
  end
end

# The same tests with larderd.
class DalliOnLarderdTest < DalliTest
  def kind
    :larderd
  end
end
