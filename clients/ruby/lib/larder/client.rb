# frozen_string_literal: true

require "timeout"

module Larder
  # The result of Client#get for a missing key if the call has the option cache_nils.
  NOT_FOUND = Object.new.freeze

  # A client for any number of threads. All threads share its connections.
  #
  # Calls raise subclasses of Larder::Error, and ArgumentError for invalid arguments.
  class Client
    OPTIONS = {
      # The time limit of a call in seconds, including the wait for a connection.
      socket_timeout: 1,
      # The time limit of opening a connection in seconds, TLS included.
      connect_timeout: 0.25,
      # The largest number of connections per server. Each call takes one of them, and waits if all are in use. If
      # false, threads share one connection per server, and fibers of a scheduler have a pool of 64.
      pool: 64,
      # Whether keys of an unreachable server move to another server.
      failover: true,
      # The login of each connection with memcached's text protocol. Default: MEMCACHE_USERNAME and MEMCACHE_PASSWORD.
      username: nil,
      password: nil,
      # Whether connections are encrypted with TLS: true, or a hash with the PEM files ca_file, cert_file and key_file,
      # and with the server_name that the certificates of the servers must contain. Default: the CAs of the system, no
      # client certificate, and the host of each server.
      ssl: nil,
      # The TTL of items in seconds, unless a call has a TTL of its own. 0 is forever.
      expires_in: 0,
      # The prefix of keys, without the colon that follows it. If the prefix is a Proc, the client calls it once.
      namespace: nil,
      # Whether the client compresses values of at least compression_min_size bytes, if that makes them shorter.
      compress: true,
      compression_min_size: 4 * 1024,
      compressor: Compressor,
      serializer: Marshal,
      # Whether the client stores values as strings (to_s) without serialization.
      raw: false,
      # The maximum length of values after compression, in bytes. Longer values raise ValueOverMaxSize.
      value_max_bytes: 1024 * 1024,
      # Whether fetch treats nil as a value.
      cache_nils: false,
      # The digest that shortens long keys.
      digest_class: ::Digest::MD5
    }.freeze

    # The TTL in seconds above which a number is a Unix time, if this time is in the future.
    TTL_MAX = 30 * 24 * 60 * 60
    # The settings of the option ssl, in the order of the parameters of Tls.new.
    TLS_SETTINGS = %i[ca_file cert_file key_file server_name].freeze
    private_constant :TTL_MAX, :TLS_SETTINGS

    def initialize(servers = nil, options = {})
      servers = Servers.parse(servers)
      refuse_ssl_context(options)
      unknown = options.keys.map(&:to_sym) - OPTIONS.keys
      raise ArgumentError, "unknown options: #{unknown.join(', ')}" unless unknown.empty?

      options = OPTIONS.merge(options.transform_keys(&:to_sym)) { |_, default, given| given.nil? ? default : given }
      @expires_in = seconds(options[:expires_in])
      @cache_nils = options[:cache_nils]
      @keys = Keys.new(*options.values_at(:namespace, :digest_class))
      @values = Values.new(**options.slice(:serializer, :compress, :compressor, :compression_min_size,
                                           :value_max_bytes, :raw))
      connect(servers, **options.slice(:socket_timeout, :connect_timeout, :pool, :failover, :username, :password, :ssl))
      Fork.watch(self)
    end

    # Returns the value of a key. If the key does not exist, returns nil, or NOT_FOUND if this call has the option
    # cache_nils. The client's option has no effect here.
    def get(key, options = nil)
      value, flags = @connections.get(@keys.sent(key))
      return @values.decode(value, flags) if value

      NOT_FOUND if options && options[:cache_nils]
    end

    # Returns the values of the existing keys in a hash. With a block, yields each key and value instead. Keys of
    # servers that are unreachable or do not reply count as missing.
    def get_multi(*keys)
      found = {}
      each_found(keys) { |key, value, _| block_given? ? yield(key, value) : found[key] = value }
      found unless block_given?
    end

    # Returns the values like get_multi, but with [value, cas] for each key.
    def get_multi_cas(*keys)
      found = {}
      each_found(keys) { |key, value, cas| block_given? ? yield(key, [value, cas]) : found[key] = [value, cas] }
      found unless block_given?
    end

    # Returns the value of a key. If it is missing, calls the block, adds the block's result and returns it. Without a
    # block, returns nil. A value of nil counts as missing, unless the client has the option cache_nils.
    def fetch(key, ttl = nil, options = nil)
      value = get(key, cache_nils: true)
      return value unless value.equal?(NOT_FOUND) || (value.nil? && !@cache_nils)
      return unless block_given?

      yield.tap { |computed| add(key, computed, ttl, options) }
    end

    # Stores a value. Returns true.
    def set(key, value, ttl = nil, options = nil)
      store("set", key, value, ttl, options)
    end

    # Stores a value if the key does not exist. Returns whether it was stored.
    def add(key, value, ttl = nil, options = nil)
      store("add", key, value, ttl, options)
    end

    # Stores a value if the key exists. Returns whether it was stored.
    def replace(key, value, ttl = nil, options = nil)
      store("replace", key, value, ttl, options)
    end

    # Stores the values of a hash, with one batch of requests to each server. After an error, some of the values may be
    # stored.
    def set_multi(hash, ttl = nil, options = nil)
      return if hash.empty?

      keys = hash.keys.map { |key| @keys.sent(key.to_s) }
      values, flags = hash.map { |key, value| @values.encode(key, value, options) }.transpose
      @connections.set_many(keys, values, flags, remaining(ttl))
      nil
    end

    # Removes keys, with one batch of requests to each server. Returns the number of removed keys.
    def delete_multi(keys)
      keys.empty? ? 0 : @connections.delete_many(keys.map { |key| @keys.sent(key.to_s) })
    end

    # Removes a key. Returns true, or nil if it does not exist.
    def delete(key)
      @connections.delete(@keys.sent(key)) || nil
    end

    # Appends to a value stored with raw: true. Returns whether the key exists.
    def append(key, value)
      @connections.store("append", @keys.sent(key), value.to_s, 0, 0, nil)
    end

    # Prepends to a value stored with raw: true. Returns whether the key exists.
    def prepend(key, value)
      @connections.store("prepend", @keys.sent(key), value.to_s, 0, 0, nil)
    end

    # Adds `amount` to a number, modulo 2^64, or creates it as `default` with this `ttl`. Returns the number, or nil if
    # the key does not exist and there is no default.
    def incr(key, amount = 1, ttl = nil, default = nil)
      count(:incr, key, amount, ttl, default)
    end

    # Subtracts `amount` from a number, but not below 0, or creates it as `default` with this `ttl`. Returns the number,
    # or nil if the key does not exist and there is no default.
    def decr(key, amount = 1, ttl = nil, default = nil)
      count(:decr, key, amount, ttl, default)
    end

    # Sets the expiry of a key. Returns true, or nil if it does not exist.
    def touch(key, ttl = nil)
      @connections.touch(@keys.sent(key), remaining(ttl)) || nil
    end

    # Sets the expiry of a key and returns its value, or nil if it does not exist.
    def gat(key, ttl = nil)
      value, flags = @connections.gat(@keys.sent(key), remaining(ttl))
      @values.decode(value, flags) if value
    end

    # Calls the block with the value of a key, and replaces the value with the result. Returns true if the value was
    # replaced, false if another client changed the value concurrently, or nil if another client removed the key. If
    # the key does not exist, returns nil without calling the block.
    def cas(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      set_cas(key, yield(value), cas, ttl, options) unless cas.zero?
    end

    # Like cas, but calls the block with nil if the key does not exist, and adds its result.
    def cas!(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      changed = yield(value)
      cas.zero? ? add(key, changed, ttl, options) : set_cas(key, changed, cas, ttl, options)
    end

    # Returns the value of a key and its CAS, or [nil, 0] if it does not exist. With a block, yields both.
    def get_cas(key)
      value, flags, cas = @connections.get(@keys.sent(key))
      value = @values.decode(value, flags) if value
      block_given? ? yield(value, cas || 0) : [value, cas || 0]
    end

    # Stores a value if the present one has this CAS. If `cas` is 0, stores it unconditionally. Returns true if the
    # value was stored, false if the present value has another CAS, or nil if the key does not exist.
    def set_cas(key, value, cas, ttl = nil, options = nil)
      return set(key, value, ttl, options) if cas.zero?

      store("set", key, value, ttl, options, cas)
    end

    # Stores a value like set_cas, except if `cas` is 0. In this case, it stores the value only if the key exists, and
    # otherwise returns false.
    def replace_cas(key, value, cas, ttl = nil, options = nil)
      cas.zero? ? replace(key, value, ttl, options) : set_cas(key, value, cas, ttl, options)
    end

    # Removes a key if it has this CAS. If `cas` is 0, removes it unconditionally. Returns whether it was removed.
    def delete_cas(key, cas = 0)
      cas.zero? ? @connections.delete(@keys.sent(key)) : @connections.delete_if(@keys.sent(key), cas)
    end

    # Runs the block. Unlike in dalli, its calls wait for their replies.
    def multi
      yield
    end
    alias quiet multi

    # Yields the client, which is its own pool.
    def with
      yield self
    end

    # Removes all items from every server. Returns an array with true for each server.
    def flush
      @connections.flush
      @each.map { true }
    end
    alias flush_all flush

    # Returns statistics by server. The types :items, :slabs and :settings select these pages, and any other type
    # selects the general page. The result of a server is nil if the server is unreachable or does not reply.
    def stats(type = nil)
      type = nil unless %i[items slabs settings].include?(type)
      by_server { |server| server.stats(type.to_s) }
    end

    # Resets the statistics of each server. Returns an array with true for each server, or nil if the server is
    # unreachable or does not reply.
    def reset_stats
      by_server { |server| server.stats("reset") }.values.map { |done| done && true }
    end

    # Returns versions by server. The version of a server is nil if the server is unreachable or does not reply.
    def version
      by_server(&:versions)
    end

    # Raises Larder::RingError if no server replies.
    def alive!
      raise RingError, "No server available" if version.values.none?

      self
    end

    # Closes idle connections at once, and each busy connection when its calls have ended. The next call opens new connections.
    def close
      [@connections, *@each.values].each(&:close)
    end
    alias reset close

    # Drops the connections in a forked child, because they belong to the parent.
    def after_fork
      [@connections, *@each.values].each(&:forget)
    end

    private

    def refuse_ssl_context(options)
      return unless options.key?(:ssl_context) || options.key?("ssl_context")

      raise ArgumentError, "ssl_context is not supported: use ssl: true or ssl: { ca_file:, cert_file:, key_file: }"
    end

    def tls(ssl)
      return if ssl.nil? || ssl == false

      settings = ssl == true ? {} : ssl
      unless settings.is_a?(Hash) && (settings.keys.map(&:to_sym) - TLS_SETTINGS).empty?
        raise ArgumentError, "ssl must be true or a hash with #{TLS_SETTINGS.join(', ')}: #{ssl.inspect}"
      end

      Tls.new(*settings.transform_keys(&:to_sym).values_at(*TLS_SETTINGS))
    end

    def connect(servers, socket_timeout:, connect_timeout:, pool:, failover:, username:, password:, ssl:)
      username ||= ENV.fetch("MEMCACHE_USERNAME", nil)
      password ||= ENV.fetch("MEMCACHE_PASSWORD", "")
      login = [username, password] if username
      pool ||= nil
      tls = tls(ssl)
      timeouts = [socket_timeout, connect_timeout]
      @connections = Connections.new(servers, timeouts, pool, failover, login, tls)
      # Each server has a Connections object for separate calls to it. A single server needs no second object.
      @each = servers.to_h do |server|
        [server[0], servers.size == 1 ? @connections : Connections.new([server], timeouts, 1, false, login, tls)]
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
      # The name of a server cannot be resolved, so the client cannot use any server yet. All keys count as missing.
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
        # Another client may create the number at the same time. If so, the loop counts again.
        return default.to_i if @connections.store("add", key, default.to_i.to_s, ttl, 0, nil)
      end
    end

    # Converts a TTL, or a Unix time in the future, to seconds from now. 0 is forever, and nil is the client's
    # expires_in.
    def remaining(ttl)
      ttl = ttl.nil? ? @expires_in : seconds(ttl)
      return ttl if ttl <= TTL_MAX

      left = ttl - Time.now.to_i
      left.positive? ? left : ttl
    end

    # Converts a number to whole seconds. Rounds up, because half a second must not become 0, which means forever.
    def seconds(ttl)
      seconds = ttl.respond_to?(:ceil) ? ttl.ceil : ttl.to_i
      raise ArgumentError, "the ttl must not be negative: #{ttl}" if seconds.negative?

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
  private_constant :Connections, :Tls
end
