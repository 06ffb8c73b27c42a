# Measures a Ruby client of memcached: driver.rb CLIENT --server HOST:PORT --mode pool ...
#
# docs/client-benchmarks.md defines the arguments and the output lines of all drivers. To add a client, add a
# class to CLIENTS.

require "optparse"

POOL = 64
TIMEOUT_SECS = 1
MANY = [6, 100].freeze
RECOVERY_SECS_MAX = 60
# An operation that takes at least this long is part of the outage. Some clients wait for the server instead of failing.
OUTAGE_SECS_MIN = 0.25

class WrongValue < StandardError; end

# In the mode `pool`, each operation borrows a client from a `ConnectionPool`, as in Rails.
class DalliClient
  def self.version = Gem::Specification.find_by_name("dalli").version.to_s

  def initialize(server, pool)
    require "dalli"
    require "connection_pool"
    Dalli.logger.level = Logger::FATAL
    options = { socket_timeout: TIMEOUT_SECS, compress: false, threadsafe: false }
    make = -> { Dalli::Client.new(server, options) }
    @pool = ConnectionPool.new(size: pool, timeout: TIMEOUT_SECS, &make) if pool > 1
    @one = make.call unless @pool
  end

  # `raw` stores strings without serializing them.
  def set(key, value)
    with { |client| client.set(key, value, 0, raw: true) } or raise "the value was not stored"
  end

  def get(key) = with { |client| client.get(key, raw: true) }

  def get_many(keys) = with { |client| client.get_multi(keys) }

  def close = with(&:close)

  private

  def with(&block) = @pool ? @pool.with(&block) : block.call(@one)
end

# Larder's client has dalli's interface and a built-in pool.
class LarderClient
  def self.load
    $LOAD_PATH.unshift("clients/ruby/lib")
    require "larder"
  end

  def self.version
    load
    Larder::VERSION
  end

  def initialize(server, pool)
    self.class.load
    @client = Larder::Client.new([server], pool: pool, socket_timeout: TIMEOUT_SECS, compress: false)
  end

  def set(key, value)
    @client.set(key, value, 0, raw: true) or raise "the value was not stored"
  end

  def get(key) = @client.get(key, raw: true)

  def get_many(keys) = @client.get_multi(keys)

  def close = @client.close
end

CLIENTS = { "dalli" => DalliClient, "larder" => LarderClient }.freeze

# A thread's key, values and connection.
class Caller
  attr_reader :key, :values

  def initialize(driver, shared, thread)
    @driver = driver
    @key = "bench-#{driver.options[:seed]}-#{thread}"
    # Sets alternate between these values, so the check detects a get that returns the previous value.
    @values = %w[a b].map { |letter| "#{@key}-#{letter}".ljust(driver.options[:"value-bytes"], ".").b }
    @client = shared || driver.client(1) unless driver.options[:mode] == "none"
  end

  def set(number) = with { |client| client.set(@key, @values[number % 2]) }

  def get(number) = judge(number, with { |client| client.get(@key) })

  def judge(number, found)
    expected = @values[number % 2]
    return if found == expected

    raise WrongValue, "the value of #{@key} is #{found.inspect[..50]}, but #{expected[..50].inspect} was stored there last"
  end

  private

  def with(&block) = @client ? block.call(@client) : @driver.with_new(&block)
end

# A barrier: `wait` blocks each thread until `count` threads have called it.
class Barrier
  def initialize(count)
    @missing = count
    @mutex = Mutex.new
    @all = ConditionVariable.new
  end

  def wait
    @mutex.synchronize do
      @missing -= 1
      @missing.zero? ? @all.broadcast : (@all.wait(@mutex) until @missing <= 0)
    end
  end
end

class Driver
  attr_reader :options

  def initialize(options)
    @options = options
    @errors = Queue.new
    $stdout.sync = true
    # Thread#value raises a thread's WrongValue in the thread that joins it.
    Thread.report_on_exception = false
  end

  def client(connections) = CLIENTS.fetch(options[:client]).new(options[:server], connections)

  def with_new
    client = client(1)
    yield client
  ensure
    client&.close
  end

  def callers(threads)
    shared = client(POOL) if options[:mode] == "pool"
    Array.new(threads) { |thread| Caller.new(self, shared, thread) }
  end

  def line(threads, name, value)
    puts format("%s,%s,%d,%s,%.3f", options[:client], options[:mode], threads, name, value)
  end

  # Returns whether the operation succeeded, and counts an error of the client. WrongValue is not rescued: it ends the
  # run.
  def attempt
    yield
    true
  rescue WrongValue
    raise
  rescue StandardError => e
    @errors << e
    false
  end

  def take_errors
    count = @errors.size
    warn "#{options[:client]}: #{count} operations failed, first: #{@errors.pop.inspect}" if count.positive?
    @errors.clear
    count
  end

  def times(threads)
    callers = callers(threads)
    (0..options[:rounds]).each do |round|
      barrier = Barrier.new(threads)
      results = callers.map do |caller|
        Thread.new do
          barrier.wait
          begun = now
          # After a failed set, the stored value is unknown.
          good = 2.times.all? { |number| attempt { caller.set(number) } && attempt { caller.get(number) } }
          good ? now - begun : nil
        end
      end
      results.map(&:value).each_with_index do |secs, thread|
        next unless secs && round.positive?

        puts format("%s,%s,%d,%d,%d,%.1f", options[:client], options[:mode], threads, round, thread, secs * 1e6)
      end
    end
    line(threads, "times_errors", take_errors)
  end

  def load(threads, prefix = "")
    callers = callers(threads)
    ready = Barrier.new(threads + 1)
    start = Barrier.new(threads + 1)
    workers = callers.map do |caller|
      Thread.new do
        latencies = []
        attempt { caller.set(0) }
        # Between these two waits, the main thread reads the CPU time of this process.
        ready.wait
        start.wait
        before = now
        last = before + options[:secs]
        number = 0
        while before < last
          succeeded = attempt { caller.set(number) }
          after = now
          latencies << after - before if succeeded
          before = after
          if succeeded
            succeeded = attempt { caller.get(number) }
            after = now
            latencies << after - before if succeeded
            before = after
          end
          number += 1
        end
        latencies
      end
    end
    ready.wait
    begun = now
    cpu_before = cpu_secs
    start.wait
    latencies = workers.flat_map(&:value)
    took = now - begun
    cpu = cpu_secs - cpu_before
    latencies.sort!
    count = [latencies.size, 1].max
    line(threads, "#{prefix}operations_per_s", latencies.size / took)
    line(threads, "cpu_us", cpu * 1e6 / count) if prefix.empty?
    line(threads, "#{prefix}mean_us", latencies.sum * 1e6 / count)
    [50, 99].each { |percent| line(threads, "#{prefix}p#{percent}_us", (latencies[(count * percent + 99) / 100 - 1] || 0) * 1e6) }
    line(threads, "#{prefix}errors", take_errors)
  end

  def many
    client = client(options[:mode] == "pool" ? POOL : 1)
    MANY.each do |keys|
      callers = Array.new(keys) { |thread| Caller.new(self, client, thread) }
      callers.each { |caller| client.set(caller.key, caller.values[0]) }
      names = callers.map(&:key)
      cpu_before = cpu_secs
      options[:calls].times do
        found = client.get_many(names)
        callers.each { |caller| caller.judge(0, found[caller.key]) }
      end
      line(1, "get_many_#{keys}_cpu_us", (cpu_secs - cpu_before) * 1e6 / options[:calls])
    end
  end

  # Runs the load next to a computing thread. `busy_share` is that thread's speed as a share of its speed without the
  # load.
  def busy(threads)
    alone = rate { sleep options[:secs] }
    line(threads, "busy_share", rate { load(threads, "busy_") } / alone)
  end

  def rate
    done = false
    thread = Thread.new do
      count = 0
      1000.times { count += 1 } until done
      count
    end
    begun = now
    yield
    done = true
    took = now - begun
    thread.value / took
  end

  def recovery
    caller = callers(1).first
    line(1, "ready", 1)
    begun = now
    failing = nil
    while now - begun < RECOVERY_SECS_MAX
      before = now
      succeeded = attempt { caller.set(0) }
      failing ||= before if !succeeded || now - before >= OUTAGE_SECS_MIN
      return line(1, "outage_us", (now - failing) * 1e6) if succeeded && failing

      sleep 0.001
    end
    abort "within #{RECOVERY_SECS_MAX} s, no operation succeeded after one that had failed"
  end

  def measure
    begin
      with_new { |client| client.set("bench", "1") }
    rescue StandardError => e
      abort "#{options[:client]}: #{options[:server]}: #{e.inspect}"
    end
    options[:measure].each do |name|
      next public_send(name) if %w[many recovery].include?(name)

      options[:threads].each { |threads| public_send(name, threads.to_i) }
    end
  rescue WrongValue => e
    abort "#{options[:client]}: #{e.message}"
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  def cpu_secs = Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID)
end

options = { server: "127.0.0.1:11211", mode: "pool", threads: ["1"], "value-bytes": 19, measure: ["times"], rounds: 5, seed: 1,
            secs: 1.0, calls: 1000 }
parser = OptionParser.new do |line|
  line.on("--server HOST:PORT")
  line.on("--mode MODE", %w[pool none thread])
  line.on("--threads LIST", Array)
  line.on("--value-bytes N", Integer)
  line.on("--measure LIST", Array)
  line.on("--rounds N", Integer)
  line.on("--seed N", Integer)
  line.on("--secs SECS", Float)
  line.on("--calls N", Integer)
  line.on("--version")
end
options[:client] = parser.parse!(into: options).first
abort "the clients are: #{CLIENTS.keys.join(", ")}" unless CLIENTS.key?(options[:client])
if options[:version]
  puts CLIENTS[options[:client]].version
else
  Driver.new(options).measure
end
