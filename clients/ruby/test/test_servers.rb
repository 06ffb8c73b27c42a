# frozen_string_literal: true

require "helper"
require "dalli"

Dalli.logger.level = Logger::FATAL

# Tests clients of several servers. These clients distribute keys over the servers like dalli.
class ServersTest < Minitest::Test
  KEYS = (0...200).map { |n| "key#{n}" }.freeze

  def setup
    @servers = Array.new(3) { Server.new(:memcached) }
  end

  def teardown
    @servers.each(&:stop)
  end

  # Weights are 1, 2 and 3.
  def addresses
    @servers.each_with_index.map { |server, n| "#{server.address}:#{n + 1}" }
  end

  def client(**options)
    Larder::Client.new(addresses, socket_timeout: PATIENCE, **options)
  end

  def items(cache)
    cache.stats.values.map { |page| page["curr_items"].to_i }
  end

  def test_keys_have_the_same_servers_as_in_dalli
    [{}, { namespace: "ns" }].each do |options|
      [client(**options), Dalli::Client.new(addresses, options)].permutation do |writer, reader|
        writer.flush
        KEYS.each { |key| writer.set(key, key) }
        KEYS.each { |key| assert_equal key, reader.get(key) }
        assert_equal KEYS.to_h { |key| [key, key] }, reader.get_multi(KEYS)
        assert_operator items(client).min, :>, 0
        assert_equal KEYS.size, items(client).sum
      end
    end
  end

  def test_calls_to_each_server
    cache = client
    names = @servers.map(&:address)
    assert_equal [true] * 3, cache.flush
    assert_equal names, cache.version.keys
    assert_equal [true] * 3, cache.reset_stats
    @servers[1].kill
    assert_equal [names[0], names[2]], cache.version.compact.keys
    assert_equal [names[0], names[2]], cache.stats.compact.keys
    assert_same cache, cache.alive!
    @servers.each(&:stop)
    assert_raises(Larder::RingError) { cache.alive! }
  end

  def test_keys_of_an_unreachable_server
    cache = client(failover: false)
    KEYS.each { |key| cache.set(key, key) }
    count = items(cache)[1]
    @servers[1].kill
    found = cache.get_multi(KEYS)
    assert_equal KEYS.size - count, found.size
    (KEYS - found.keys).each { |key| assert_raises(Larder::Error) { cache.get(key) } }
    found.each_key { |key| assert_equal key, cache.get(key) }
  end

  def test_keys_fail_over_to_another_server
    cache = client
    KEYS.each { |key| cache.set(key, key) }
    @servers[1].kill
    # No call fails because of the dead server: neither the first calls to it, nor the later calls that probe it.
    found = KEYS.to_h { |key| [key, cache.get(key)] }.compact
    assert_operator found.size, :<, KEYS.size
    lost = KEYS - found.keys
    20.times do
      lost.each { |key| assert cache.set(key, "moved") }
      assert_equal ["moved"] * lost.size, cache.get_multi(lost).values
      sleep 0.02
    end
  end

  def test_a_thread_waiting_for_several_servers_can_be_killed
    silent = Array.new(3) { FakeServer.new { nil } }
    cache = Larder::Client.new(silent.map(&:address), socket_timeout: 600)
    thread = Thread.new { cache.get_multi(KEYS) }
    wait_until("the requests") { silent.all? { |server| server.accepted == 1 } && thread.stop? }
    thread.kill
    assert thread.join(PATIENCE)
    # The next call must not get the reply to the killed call.
    quick = Larder::Client.new(@servers[0].address)
    assert_equal true, Thread.new { quick.set("key", 1) }.value
  ensure
    silent.each(&:stop)
  end

  def test_an_exception_ends_a_call_to_several_servers
    silent = FakeServer.new { nil }
    closing = FakeServer.new { |_, socket| socket.close }
    cache = Larder::Client.new([silent.address, closing.address], socket_timeout: 600)
    thread = Thread.new do
      cache.get_multi(KEYS)
    rescue IOError
      [:interrupted, (Larder::Client.new(@servers[0].address).set("key", 1))]
    end
    wait_until("the requests") { silent.accepted == 1 && closing.accepted >= 1 && thread.stop? }
    thread.raise(IOError)
    assert_equal [:interrupted, true], thread.value
  ensure
    [silent, closing].each(&:stop)
  end
end
