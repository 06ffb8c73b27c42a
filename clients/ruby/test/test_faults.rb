# frozen_string_literal: true

require "helper"
require "tempfile"

# Tests calls with unreachable servers and unexpected replies.
class FaultsTest < Minitest::Test
  def client(server, **options)
    Larder::Client.new([server.address], socket_timeout: PATIENCE, **options)
  end

  def check_down(cache)
    [-> { cache.get("key") }, -> { cache.set("key", 1) }, -> { cache.fetch("key") { flunk } }, -> { cache.alive! }].each do |call|
      assert_raises(Larder::RingError, &call)
    end
    assert_equal({}, cache.get_multi("key"))
    assert_nil cache.version.values.first
    assert_nil cache.stats.values.first
  end

  def test_a_restarted_server_is_found_again
    %i[larderd memcached].each do |kind|
      server = Server.new(kind)
      cache = client(server)
      cache.set("key", 1)
      server.kill
      # This call uses the connection that was open when the server was killed.
      assert_raises(Larder::Error) { cache.set("key", 1) }
      check_down(cache)
      server.start
      wait_until("recovery") do
        cache.set("key", 2)
      rescue Larder::RingError
        false
      end
      assert_equal 2, cache.get("key")
    ensure
      server.stop
    end
  end

  def test_a_server_killed_under_load
    server = Server.new
    cache = client(server, pool: 8)
    stop = false
    threads = Array.new(16) do |name|
      Thread.new do
        until stop
          begin
            cache.set("key#{name}", name)
            value = cache.get("key#{name}")
            break value unless [name, nil].include?(value)
          rescue Larder::NetworkError, Larder::RingError
            Thread.pass
          end
        end
      end
    end
    3.times do
      wait_until("load") { cache.get("key0") == 0 rescue false }
      server.kill
      server.start
    end
    wait_until("load") { cache.get("key0") == 0 rescue false }
    stop = true
    assert_equal [nil], threads.map(&:value).uniq
  ensure
    server&.stop
  end

  def test_unexpected_replies
    ["what?\r\n", "VALUE other 0 1 1\r\nx\r\nEND\r\n", "VALUE key 0 9 1\r\nhalf"].each do |text|
      server = FakeServer.new do |_, socket|
        socket.write(text)
        socket.close
      end
      error = assert_raises(Larder::NetworkError) { client(server).get("key") }
      refute error.ambiguous?
    ensure
      server.stop
    end
  end

  def test_errors_of_sent_changes_are_ambiguous
    server = FakeServer.new { nil }
    error = assert_raises(Larder::NetworkError) { client(server, socket_timeout: 0.2).set("key", 1) }
    assert error.ambiguous?
    assert_match(/may have happened/, error.message)
    refute assert_raises(Larder::NetworkError) { client(server, socket_timeout: 0.2).get("key") }.ambiguous?
  ensure
    server.stop
  end

  def test_server_errors
    server = FakeServer.new { |line, socket| socket.write("SERVER_ERROR out of memory\r\n") if line.start_with?("get") }
    error = assert_raises(Larder::Error) { client(server).get("key") }
    assert_instance_of Larder::Error, error
    assert_kind_of Larder::DalliError, error
    assert_match(/out of memory/, error.message)
  ensure
    server.stop
  end

  def test_logins
    Tempfile.create("passwords") do |file|
      file.write("ann:secret\n")
      file.close
      File.chmod(0o644, file.path)
      %i[larderd memcached].each do |kind|
        server = Server.new(kind, "-Y", file.path)
        cache = client(server, username: "ann", password: "secret")
        assert_equal true, cache.set("key", 1)
        assert_equal 1, cache.get("key")
        refused = client(server, username: "ann", password: "wrong")
        error = assert_raises(Larder::Error) { refused.get("key") }
        assert_match(/login refused/, error.message)
        refute_match(/wrong/, error.message)
        assert_raises(Larder::Error) { client(server).get("key") }
      ensure
        server&.stop
      end
    end
  end

  def test_exceptions_of_a_block_pass_through
    server = Server.shared(:larderd)
    cache = client(server)
    cache.set("key", 1)
    assert_raises(Larder::RingError) { cache.get_multi("key") { raise Larder::RingError } }
  end
end
