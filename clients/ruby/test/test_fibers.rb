# frozen_string_literal: true

require "helper"

# Tests concurrent fibers of one thread. A scheduler runs other fibers while one fiber waits.
class FibersTest < Minitest::Test
  # A minimal fiber scheduler with the methods that calls need.
  class Scheduler
    def initialize
      @ready = []
      @readable = {}
      @writable = {}
      @sleeping = {}
    end

    def fiber(&block)
      Fiber.new(blocking: false, &block).tap(&:resume)
    end

    def io_wait(io, events, timeout)
      @readable[io] = Fiber.current if events.anybits?(IO::READABLE)
      @writable[io] = Fiber.current if events.anybits?(IO::WRITABLE)
      @sleeping[Fiber.current] = now + timeout if timeout
      Fiber.yield || false
    end

    def kernel_sleep(duration = nil)
      @sleeping[Fiber.current] = now + duration if duration
      Fiber.yield
    end

    def block(_blocker, timeout = nil)
      kernel_sleep(timeout)
    end

    def unblock(_blocker, fiber)
      @ready << fiber
    end

    def close
      until (@readable.size + @writable.size + @sleeping.size + @ready.size).zero?
        @ready.shift(@ready.size).each(&:resume)
        pause = [@sleeping.values.min.to_f - now, 0].max
        readable, writable = IO.select(@readable.keys, @writable.keys, [], @sleeping.empty? ? nil : pause)
        Array(readable).each { |io| resume(@readable[io], IO::READABLE) }
        Array(writable).each { |io| resume(@writable[io], IO::WRITABLE) }
        @sleeping.select { |_, time| time <= now }.each_key { |fiber| resume(fiber, nil) }
      end
    end

    private

    def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

    def resume(fiber, events)
      return unless fiber

      [@readable, @writable].each { |waiting| waiting.delete_if { |_, other| other == fiber } }
      @sleeping.delete(fiber)
      fiber.resume(events)
    end
  end

  def in_fibers(count)
    results = []
    Thread.new do
      Fiber.set_scheduler(Scheduler.new)
      count.times { |n| Fiber.schedule { results << yield(n) } }
    end.join
    results
  end

  def test_fibers_wait_concurrently
    # The server replies after it has received all requests. By then, no fiber polls any more.
    requests = 0
    server = FakeServer.new do |line, socket|
      requests += 1
      wait_until("all requests") { (requests % 10).zero? }
      socket.write("VALUE #{line.split.last} 0 1 1\r\nx\r\nEND\r\n")
    end
    cache = Larder::Client.new([server.address], socket_timeout: PATIENCE)
    2.times do
      assert_equal ["x"] * 10, in_fibers(10) { |n| cache.get("key#{n}") }
      # The scheduler has created IO objects for the sockets. Their finalizers must not close the sockets.
      GC.start
    end
    assert_equal 10, server.accepted
  ensure
    server&.stop
  end

  def test_fibers_wait_for_connections_of_other_fibers
    cache = Larder::Client.new([Server.shared(:larderd).address], pool: 2, socket_timeout: PATIENCE)
    results = in_fibers(20) do |n|
      5.times do |round|
        key = "fiber#{n}-#{round}"
        cache.set(key, key * 2000)
        GC.start if n.zero?
        break key unless cache.get(key) == key * 2000
      end
    end
    assert_equal [5], results.uniq
  end
end
