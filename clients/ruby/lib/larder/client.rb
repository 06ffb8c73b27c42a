# frozen_string_literal: true

require "timeout"

module Larder
  # What is returned for a key that is not there, with the option cache_nils.
  NOT_FOUND = Object.new.freeze

  # A client for any number of threads, which share its connections.
  #
  # Errors are Larder::Errors, and ArgumentErrors for what no server can have.
  class Client
    OPTIONS = {
      # How long a call takes at most, in seconds, the wait for a connection included.
      socket_timeout: 1,
      # How many connections to each server may be open together; each call has one to itself, and further calls wait for
      # one. With false threads share one, and fibers of a scheduler have a pool of 64.
      pool: 64,
      # Whether keys of a server that is down go to another one.
      failover: true,
      # Each connection logs in with these, or those of MEMCACHE_USERNAME and MEMCACHE_PASSWORD, by the text protocol.
      username: nil,
      password: nil,
      # The TTL of items in seconds, unless a call has its own; 0 is for ever.
      expires_in: 0,
      # Is put before each key, with a colon. Procs are called once.
      namespace: nil,
      # Serialized values of so many bytes or more are compressed, if that makes them shorter.
      compress: true,
      compression_min_size: 4 * 1024,
      compressor: Compressor,
      serializer: Marshal,
      # Values are strings, which are stored as they are.
      raw: false,
      # Longer values are refused.
      value_max_bytes: 1024 * 1024,
      # Whether fetch takes nil for a value.
      cache_nils: false,
      # Shortens long keys.
      digest_class: ::Digest::MD5
    }.freeze

    # Longer TTLs are points in time, if they are in the future.
    TTL_MAX = 30 * 24 * 60 * 60
    private_constant :TTL_MAX

    def initialize(servers = nil, options = {})
      servers = Servers.parse(servers)
      unknown = options.keys.map(&:to_sym) - OPTIONS.keys
      raise ArgumentError, "unknown options: #{unknown.join(', ')}" unless unknown.empty?

      options = OPTIONS.merge(options.transform_keys(&:to_sym)) { |_, default, given| given.nil? ? default : given }
      @expires_in = seconds(options[:expires_in])
      @cache_nils = options[:cache_nils]
      @keys = Keys.new(*options.values_at(:namespace, :digest_class))
      @values = Values.new(**options.slice(:serializer, :compress, :compressor, :compression_min_size,
                                           :value_max_bytes, :raw))
      connect(servers, **options.slice(:socket_timeout, :pool, :failover, :username, :password))
      Fork.watch(self)
    end

    # The value of a key, or nil.
    def get(key, options = nil)
      value, flags = @connections.get(@keys.sent(key))
      return @values.decode(value, flags) if value

      NOT_FOUND if options && options[:cache_nils]
    end

    # The values of those keys that are there, in a hash; with a block, each key and value is yielded. Keys of a server
    # that is down are as if they were not there.
    def get_multi(*keys)
      found = {}
      each_found(keys) { |key, value, _| block_given? ? yield(key, value) : found[key] = value }
      found unless block_given?
    end

    # The same with [value, cas] for each key.
    def get_multi_cas(*keys)
      found = {}
      each_found(keys) { |key, value, cas| block_given? ? yield(key, [value, cas]) : found[key] = [value, cas] }
      found unless block_given?
    end

    # The value of a key; otherwise that of the block, which is added.
    def fetch(key, ttl = nil, options = nil)
      value = get(key, cache_nils: true)
      return value unless value.equal?(NOT_FOUND) || (value.nil? && !@cache_nils)
      return unless block_given?

      yield.tap { |computed| add(key, computed, ttl, options) }
    end

    # Stores a value; returns true.
    def set(key, value, ttl = nil, options = nil)
      store("set", key, value, ttl, options)
    end

    # Stores a value if there is none; whether it was stored.
    def add(key, value, ttl = nil, options = nil)
      store("add", key, value, ttl, options)
    end

    # Stores a value if there is one; whether it was stored.
    def replace(key, value, ttl = nil, options = nil)
      store("replace", key, value, ttl, options)
    end

    # Removes a key; true, or nil if it is not there.
    def delete(key)
      @connections.delete(@keys.sent(key)) || nil
    end

    # Adds to the end of a value that was stored with raw: true, if there is one; whether that was done.
    def append(key, value)
      @connections.store("append", @keys.sent(key), value.to_s, 0, 0, nil)
    end

    # Adds to the begin of a value that was stored with raw: true, if there is one; whether that was done.
    def prepend(key, value)
      @connections.store("prepend", @keys.sent(key), value.to_s, 0, 0, nil)
    end

    # Adds to a number, which wraps at 2^64, or creates it as `default`; returns it. Nil if there is none, and no default.
    def incr(key, amount = 1, ttl = nil, default = nil)
      count(:incr, key, amount, ttl, default)
    end

    # Subtracts from a number, down to 0 at most, or creates it as `default`; returns it. Nil as above.
    def decr(key, amount = 1, ttl = nil, default = nil)
      count(:decr, key, amount, ttl, default)
    end

    # Sets when a key expires; true, or nil if it is not there.
    def touch(key, ttl = nil)
      @connections.touch(@keys.sent(key), remaining(ttl)) || nil
    end

    # The value of a key, whose expiry is set, or nil.
    def gat(key, ttl = nil)
      value, flags = @connections.gat(@keys.sent(key), remaining(ttl))
      @values.decode(value, flags) if value
    end

    # Stores what the block makes of the value, if there is one and it was not changed meanwhile: true, false if it was
    # changed, nil if there is none.
    def cas(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      set_cas(key, yield(value), cas, ttl, options) unless cas.zero?
    end

    # The same, but the block gets nil if there is no value.
    def cas!(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      changed = yield(value)
      cas.zero? ? add(key, changed, ttl, options) : set_cas(key, changed, cas, ttl, options)
    end

    # The value of a key and its CAS, [nil, 0] if it is not there. A block gets both.
    def get_cas(key)
      value, flags, cas = @connections.get(@keys.sent(key))
      value = @values.decode(value, flags) if value
      block_given? ? yield(value, cas || 0) : [value, cas || 0]
    end

    # Stores a value if the present one has this CAS, or any with 0: true, false if it has another, nil if there is none.
    def set_cas(key, value, cas, ttl = nil, options = nil)
      return set(key, value, ttl, options) if cas.zero?

      store("set", key, value, ttl, options, cas)
    end

    # The same, but with 0 only if there is a value.
    def replace_cas(key, value, cas, ttl = nil, options = nil)
      cas.zero? ? replace(key, value, ttl, options) : set_cas(key, value, cas, ttl, options)
    end

    # Removes a key if it has this CAS, or any with 0: whether it was removed.
    def delete_cas(key, cas = 0)
      cas.zero? ? @connections.delete(@keys.sent(key)) : @connections.delete_if(@keys.sent(key), cas)
    end

    # Runs the block, whose calls wait for their answers as others do.
    def multi
      yield
    end
    alias quiet multi

    # Yields the client: it is its own pool.
    def with
      yield self
    end

    # Removes all items.
    def flush
      @connections.flush
      @each.map { true }
    end
    alias flush_all flush

    # Statistics by server: those of :items, :slabs or :settings, or the general ones. Nil for a server that is down.
    def stats(type = nil)
      type = nil unless %i[items slabs settings].include?(type)
      by_server { |server| server.stats(type.to_s) }
    end

    # Resets the statistics of each server.
    def reset_stats
      by_server { |server| server.stats("reset") }.values.map { |done| done && true }
    end

    # Versions by server; nil for a server that is down.
    def version
      by_server(&:versions)
    end

    # Raises Larder::RingError if no server answers.
    def alive!
      raise RingError, "No server available" if version.values.none?

      self
    end

    # Closes all connections. A further call opens new ones.
    def close
      [@connections, *@each.values].each(&:close)
    end
    alias reset close

    # Is called in the child of a fork: what is open is the parent's.
    def after_fork
      [@connections, *@each.values].each(&:forget)
    end

    private

    def connect(servers, socket_timeout:, pool:, failover:, username:, password:)
      username ||= ENV.fetch("MEMCACHE_USERNAME", nil)
      password ||= ENV.fetch("MEMCACHE_PASSWORD", "")
      login = [username, password] if username
      pool ||= nil
      @connections = Connections.new(servers, socket_timeout, pool, failover, login)
      # Each server by itself, for what each is asked.
      @each = servers.to_h do |server|
        [server[0], servers.size == 1 ? @connections : Connections.new([server], socket_timeout, 1, false, login)]
      end
    end

    def each_found(keys)
      keys = keys.flatten.compact.map(&:to_s)
      keys.zip(found(keys)) do |key, (value, flags, cas)|
        yield key, @values.decode(value, flags), cas if value
      end
    end

    def found(keys)
      @connections.get_many(keys.map { |key| @keys.sent(key) })
    rescue RingError
      # Not even the name of a server is known.
      []
    end

    def store(mode, key, value, ttl, options, cas = nil)
      value, flags = @values.encode(key, value, options)
      @connections.store(mode, @keys.sent(key), value, remaining(ttl), flags, cas)
    end

    def count(operation, key, amount, ttl, default)
      raise ArgumentError, "Positive values only: #{amount}" if amount.negative?

      key = @keys.sent(key)
      ttl = remaining(ttl)
      loop do
        number = @connections.public_send(operation, key, amount.to_i)
        return number if number || default.nil?
        # Somebody else may create it at the same time.
        return default.to_i if @connections.store("add", key, default.to_i.to_s, ttl, 0, nil)
      end
    end

    # Seconds from now, 0 for ever.
    def remaining(ttl)
      ttl = ttl.nil? ? @expires_in : seconds(ttl)
      return ttl if ttl <= TTL_MAX

      left = ttl - Time.now.to_i
      left.positive? ? left : ttl
    end

    # Parts of a second count as one: otherwise half a second would be for ever.
    def seconds(ttl)
      seconds = ttl.respond_to?(:ceil) ? ttl.ceil : ttl.to_i
      raise ArgumentError, "a ttl can't be negative: #{ttl}" if seconds.negative?

      seconds
    rescue NoMethodError
      raise ArgumentError, "Cannot convert ttl (#{ttl}) to an integer"
    end

    def by_server
      @each.to_h do |address, server|
        [address, yield(server).values.first]
      rescue NetworkError, RingError
        [address, nil]
      end
    end
  end
  private_constant :Connections
end
