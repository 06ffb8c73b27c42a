# frozen_string_literal: true

# Runs the shared cache-store tests of one Rails version: ruby -Ilib -Itest test/rails_behaviours.rb SOURCES
#
# SOURCES is a checkout of Rails. The tests use its folders activesupport/ and tools/, and need only the libraries of
# ActiveSupport.

require "set"
require "logger"

SOURCES = File.expand_path(ARGV.shift || abort("name a checkout of Rails"))
%w[lib test].each { |folder| $LOAD_PATH.unshift(File.join(SOURCES, "activesupport", folder)) }
Dir.chdir(File.join(SOURCES, "activesupport"))
require "abstract_unit"
require "active_support/cache"
require "cache/behaviors"
require_relative "helper"

# The tests that Rails's MemCacheStoreTest includes.
class LarderStoreTest < ActiveSupport::TestCase
  stores = File.read(File.join(SOURCES, "activesupport/test/cache/stores/mem_cache_store_test.rb"))
  # The excluded tests need dalli, because they test a pool of dalli's clients and dalli's errors.
  included = stores.scan(/^  include (\w+Behavior)$/).flatten - %w[ConnectionPoolBehavior FailureSafetyBehavior]
  included.each { |name| include const_get(name) }

  # Skips tests if their library is not installed.
  { test_middleware: "rack/body_proxy", "test_serializer_can_be_:message_pack": "msgpack" }.each do |test, library|
    require library
    gem library, ">= 1.7" if library == "msgpack"
  rescue LoadError
    define_method(test) { skip "#{library} is not installed" } if method_defined?(test)
  end

  def lookup_store(*addresses, **options)
    addresses = [Server.shared(:larderd).address] if addresses.empty?
    ActiveSupport::Cache.lookup_store(:larder_store, *addresses, namespace: @namespace, socket_timeout: 60, **options)
  end

  def setup
    @namespace = "test-#{Random.hex(8)}"
    @cache = lookup_store(expires_in: 60)
    @peek = lookup_store
    @cache.logger = ActiveSupport::Logger.new(File::NULL)
  end

  def teardown
    @cache.clear
  end

  def test_keys_are_those_of_the_store_of_memcached
    ["b" * 251, "c" * 100 + "\u{1F60F}" + "c" * 149, "a b%", "short"].each do |key|
      shown = @cache.send(:normalize_key, key, { namespace: nil })
      assert_operator shown.bytesize, :<=, 250
      assert_match(/\A[!-~]+\z/, shown)
    end
    assert_match(/\Ab+:hash:\h{32}\z/, @cache.send(:normalize_key, "b" * 251, { namespace: nil }))
  end

  # Replaces a test of Rails that decrements below 0, because memcached has no negative numbers.
  def test_decrement
    foo = SecureRandom.uuid
    @cache.write(foo, 3, raw: true)
    assert_equal [2, 1], Array.new(2) { @cache.decrement(foo) }
    assert_equal "1", @cache.read(foo, raw: true)
  end

  def test_counting_an_unset_key
    expected = ActiveSupport::VERSION::STRING.to_f < 7.1 ? [nil, nil] : [5, 0]
    assert_equal expected, [@cache.increment("up", 5), @cache.decrement("down", 5)]
  end

  def test_raw_values
    cache = lookup_store(raw: true)
    cache.write("foo", 2)
    assert_equal "2", cache.read("foo")
    cache.write("foo", Marshal.dump([]))
    assert_equal Marshal.dump([]), cache.read("foo")
  end

  def test_values_of_an_unreachable_server_are_misses
    cache = lookup_store("127.0.0.1:1", expires_in: 60)
    cache.logger = ActiveSupport::Logger.new(File::NULL)
    assert_nil cache.read("foo")
    assert_empty cache.read_multi("foo", "bar")
    assert_not cache.write("foo", 1)
    assert_not cache.delete("foo")
    assert_nil cache.increment("foo")
    assert_equal(1, cache.fetch("foo") { 1 })
  end
end
