# frozen_string_literal: true

require "helper"

# Tests concurrent threads, and interrupts of waiting threads.
class ThreadsTest < Minitest::Test
  LONG = 600

  def setup
    @silent = FakeServer.new { nil }
    @reports = Thread.report_on_exception
    Thread.report_on_exception = false
  end

  def teardown
    Thread.report_on_exception = @reports
    @silent.stop
  end

  def silent(**options)
    Larder::Client.new([@silent.address], socket_timeout: LONG, **options)
  end

  # Starts a thread that waits for a reply that never arrives.
  def waiting(cache)
    before = @silent.accepted
    thread = Thread.new { cache.get("key") }
    wait_until("the request") { @silent.accepted > before && thread.stop? }
    thread
  end

  def finish(thread)
    assert thread.join(PATIENCE)
  rescue IOError
    # The interrupt arrived before the thread entered the block that rescues it.
  end

  def test_killed_threads_of_a_pool_mix_up_no_values
    kill_and_raise(pool: 8)
  end

  def test_killed_threads_of_a_shared_connection_mix_up_no_values
    kill_and_raise(pool: false)
  end

  # Kills threads, and raises exceptions in threads, while they make calls. Some threads survive a kill, because Ruby
  # itself can lose a kill during an exception in `ensure`.
  def kill_and_raise(**options)
    cache = Larder::Client.new([Server.shared(:larderd).address], socket_timeout: LONG, **options)
    stop = false
    outcomes = Array.new(64) { Hash.new(0) }
    start = lambda do |name|
      Thread.new do
        until stop
          key = "#{name}-#{rand(10)}"
          cache.set(key, key * rand(1..2000))
          value = Timeout.timeout(rand / 500) { cache.get(key) }
          abort "#{key} has another's value" unless value.nil? || value == key * (value.size / key.size)
          outcomes[name][:call] += 1
        end
      rescue Timeout::Error
        outcomes[name][:timeout] += 1
        retry
      rescue IOError
        outcomes[name][:raise] += 1
        retry
      end
    end
    threads = Array.new(64) { |name| start.call(name) }
    300.times do |n|
      victim = rand(64)
      thread = threads[victim]
      if n.odd?
        thread.raise(IOError)
        Thread.pass
      else
        before = outcomes[victim].values.sum
        thread.kill
        wait_until("the end of a thread") { !thread.alive? || outcomes[victim].values.sum > before + 1 }
      end
      threads[victim] = start.call(victim) unless thread.alive?
    end
    stop = true
    threads.each { |thread| finish(thread) }
    %i[call raise].each { |outcome| assert_operator outcomes.sum { |of_one| of_one[outcome] }, :>, 0, outcomes.inspect }
    # Checks that new threads can use the client after the kills.
    busy = Array.new(64) { |n| Thread.new { cache.set("last#{n}", n) && cache.get("last#{n}") } }
    assert_equal (0...64).to_a, busy.map(&:value)
  ensure
    stop = true
  end

  def test_a_waiting_thread_can_be_killed
    thread = waiting(silent)
    thread.kill
    assert thread.join(PATIENCE)
  end

  def test_a_thread_waiting_for_a_connection_can_be_killed
    cache = silent(pool: 1)
    first = waiting(cache)
    second = Thread.new { cache.get("key") }
    wait_until("waiting") { second.stop? }
    second.kill
    assert second.join(PATIENCE)
    first.kill
    assert first.join(PATIENCE)
    assert_equal 1, @silent.accepted
  end

  def test_exceptions_are_raised_in_a_waiting_thread
    thread = waiting(silent)
    thread.raise(ArgumentError, "from outside")
    error = assert_raises(ArgumentError) { thread.join }
    assert_equal "from outside", error.message
  end

  def test_timeout_ends_a_call_and_its_connection
    cache = silent
    assert_raises(Timeout::Error) { Timeout.timeout(0.05) { cache.set("key", 1) } } until @silent.accepted >= 2
  end

  def test_interrupts_can_be_deferred
    cache = Larder::Client.new([@silent.address], socket_timeout: 1)
    error = nil
    thread = Thread.new do
      Thread.handle_interrupt(IOError => :never) do
        cache.get("key")
      rescue Larder::NetworkError => e
        error = e
      end
    end
    wait_until("the request") { @silent.accepted == 1 && thread.stop? }
    thread.raise(IOError)
    assert_raises(IOError) { thread.join }
    assert_match(/deadline/, error.message)
  end

  def test_handled_signals_do_not_end_a_call
    server = FakeServer.new do |_, socket|
      Process.kill(:USR1, Process.pid)
      sleep 0.05
      socket.write("VALUE key 0 2 1\r\nhi\r\nEND\r\n")
    end
    handled = 0
    before = trap(:USR1) { handled += 1 }
    assert_equal "hi", Larder::Client.new([server.address], socket_timeout: LONG).get("key")
    assert_equal 1, handled
  ensure
    trap(:USR1, before)
    server.stop
  end

  def test_the_main_thread_can_be_interrupted
    script = <<~RUBY
      require "larder"
      # A shell that runs the tests in the background may have set the signal to be ignored.
      trap("INT", "DEFAULT")
      cache = Larder::Client.new([#{@silent.address.inspect}], socket_timeout: #{LONG})
      begin
        cache.get("key")
      rescue Interrupt
        puts "interrupted"
      end
    RUBY
    IO.popen([RbConfig.ruby, "-I", $LOAD_PATH.find { |path| File.exist?("#{path}/larder.rb") }, "-e", script]) do |child|
      wait_until("the request") { @silent.accepted == 1 }
      wait_until("the end") do
        Process.kill(:INT, child.pid)
        child.wait_readable(0.05)
      end
      assert_equal "interrupted\n", child.read
    end
  end

  def test_closing_a_client_wakes_threads_waiting_for_a_connection
    cache = silent(pool: 1)
    first = waiting(cache)
    second = Thread.new { cache.get("key") }
    wait_until("waiting") { second.stop? }
    cache.close
    assert_raises(Larder::Error) { second.join }
    first.kill
  end
end
