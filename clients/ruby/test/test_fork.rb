# frozen_string_literal: true

require "helper"

# Tests that a forked child has connections of its own.
class ForkTest < Minitest::Test
  def setup
    @server = Server.new
    @cache = Larder::Client.new([@server.address], pool: 4, socket_timeout: PATIENCE)
    @cache.set("key", "value")
  end

  def teardown
    @server.stop
  end

  # Returns the number of connections that this process has to the server.
  def sockets
    Dir.children("/proc/self/fd").count do |fd|
      next unless File.readlink("/proc/self/fd/#{fd}").start_with?("socket:")

      Socket.for_fd(fd.to_i).tap { |socket| socket.autoclose = false }.remote_address.ip_port == @server.port
    rescue SystemCallError
      false
    end
  end

  # Forks a child that runs the block. The child exits without running exit handlers, because they would stop the
  # parent's servers.
  def child
    fork do
      yield
      exit!(0)
    rescue Exception => e
      warn e.full_message
    ensure
      exit!(1)
    end
  end

  # Returns the result of a block in a forked child.
  def in_child
    reader, writer = IO.pipe
    pid = child do
      reader.close
      writer.write(Marshal.dump(yield))
    end
    writer.close
    value = reader.read
    Process.wait(pid)
    Marshal.load(value)
  end

  def test_the_child_drops_the_sockets_and_opens_its_own
    assert_equal 1, sockets
    before, value, after = in_child { [sockets, @cache.get("key"), sockets] }
    assert_equal [0, "value", 1], [before, value, after]
    assert_equal "value", @cache.get("key")
  end

  def test_parent_and_child_mix_up_no_values
    children = Array.new(4) do |n|
      child do
        500.times do |round|
          key = "child#{n}-#{round % 7}"
          @cache.set(key, key)
          raise "not #{key}" unless @cache.get(key) == key
        end
      end
    end
    500.times { assert_equal "value", @cache.get("key") }
    children.each { |pid| assert_predicate Process.wait2(pid).last, :success? }
  end

  def test_a_child_of_a_busy_parent
    stop = false
    threads = Array.new(8) { Thread.new { @cache.get("key") until stop } }
    20.times { assert_equal "value", in_child { @cache.get("key") } }
    stop = true
    threads.each(&:join)
  end

  def test_collected_clients_are_ignored
    forks = Larder.const_get(:Fork)
    # The garbage collector runs in some of the rounds.
    500.times do
      Array.new(100) { Larder::Client.new("cache") }
      forks.forget_connections
    end
    GC.start
    assert_operator forks::CLIENTS.size, :<, 50
    assert_equal "value", @cache.get("key")
  end

  def test_a_daemon_opens_its_own_connections
    reader, writer = IO.pipe
    pid = child do
      reader.close
      @cache.get("key")
      Process.daemon(true, true)
      writer.write(Marshal.dump([sockets, @cache.get("key")]))
    end
    writer.close
    Process.wait(pid)
    assert_equal [0, "value"], Marshal.load(reader.read)
  end
end
