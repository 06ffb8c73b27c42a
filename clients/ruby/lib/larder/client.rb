# frozen_string_literal: true

require "timeout"

module Larder
  # Client#get returns this object for a missing key if the call has the option cache_nils.
  NOT_FOUND = Object.new.freeze

  # A client for any number of threads. All threads share its connections.
  #
  # Calls raise subclasses of Larder::Error, and ArgumentError for invalid arguments.
  class Client
    OPTIONS = {
      # The time limit of a call in seconds. It includes the wait for a connection.
      socket_timeout: 1,
      # The time limit for opening a connection in seconds. It includes the TLS handshake.
      connect_timeout: 0.25,
      # The maximum number of connections per server. Each call uses one connection, and waits if all connections are in
      # use. If false, threads share one connection per server, and fibers of a scheduler use a pool of 64.
      pool: 64,
      # Whether the keys of an unreachable server move to other servers.
      failover: true,
      # The user name and the password for the login on each connection, with memcached's text protocol. Default:
      # MEMCACHE_USERNAME and MEMCACHE_PASSWORD.
      username: nil,
      password: nil,
      # Encrypts connections with TLS: true, or a hash of settings. ca_file, cert_file and key_file are PEM files, and
      # the servers' certificates must contain server_name. The defaults are the CAs of the system, no client
      # certificate, and the host of each server.
      ssl: nil,
      # The TTL of items in seconds, for calls without a TTL. 0 means that items never expire.
      expires_in: 0,
      # The prefix of keys, without the colon that follows it. If it is a Proc, the client calls it once and uses the
      # result.
      namespace: nil,
      # Whether the client compresses values of at least compression_min_size bytes. A value that compression does not
      # make shorter stays uncompressed.
      compress: true,
      compression_min_size: 4 * 1024,
      compressor: Compressor,
      serializer: Marshal,
      # Whether the client stores values as strings (with to_s) instead of serializing them.
      raw: false,
      # The maximum length of a value after compression, in bytes. Storing a longer value raises ValueOverMaxSize.
      value_max_bytes: 1024 * 1024,
      # Whether fetch treats a stored nil as a value.
      cache_nils: false,
      # The digest class for shortening long keys.
      digest_class: ::Digest::MD5
    }.freeze

    # A TTL above this number of seconds is a Unix time, if that time is in the future.
    TTL_MAX = 30 * 24 * 60 * 60
    # The keys of the option ssl, in the order of the parameters of Tls.new.
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
    # cache_nils. The client's option cache_nils has no effect here.
    def get(key, options = nil)
      value, flags = @connections.get(@keys.sent(key))
      return @values.decode(value, flags) if value

      NOT_FOUND if options && options[:cache_nils]
    end

    # Returns a hash with the values of the keys that exist. With a block, yields each key and its value instead. If a
    # server is unreachable or does not reply, its keys count as missing.
    def get_multi(*keys)
      found = {}
      each_found(keys) { |key, value, _| block_given? ? yield(key, value) : found[key] = value }
      found unless block_given?
    end

    # Like get_multi, but returns or yields [value, cas] instead of each value.
    def get_multi_cas(*keys)
      found = {}
      each_found(keys) { |key, value, cas| block_given? ? yield(key, [value, cas]) : found[key] = [value, cas] }
      found unless block_given?
    end

    # Returns the value of a key. If there is none, calls the block, stores the block's result with add, and returns it.
    # Without a block, returns nil. A value of nil counts as missing, unless the client has the option cache_nils.
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

    # Stores a value if the key does not exist. Returns whether the value was stored.
    def add(key, value, ttl = nil, options = nil)
      store("add", key, value, ttl, options)
    end

    # Stores a value if the key exists. Returns whether the value was stored.
    def replace(key, value, ttl = nil, options = nil)
      store("replace", key, value, ttl, options)
    end

    # Stores the values of a hash. Sends one batch of requests to each server. After an error, some of the values may be
    # stored.
    def set_multi(hash, ttl = nil, options = nil)
      return if hash.empty?

      keys = hash.keys.map { |key| @keys.sent(key.to_s) }
      values, flags = hash.map { |key, value| @values.encode(key, value, options) }.transpose
      @connections.set_many(keys, values, flags, remaining(ttl))
      nil
    end

    # Removes keys. Sends one batch of requests to each server. Returns the number of removed keys.
    def delete_multi(keys)
      keys.empty? ? 0 : @connections.delete_many(keys.map { |key| @keys.sent(key.to_s) })
    end

    # Removes a key. Returns true, or nil if the key does not exist.
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

    # Adds `amount` to a number, modulo 2^64. If the key does not exist, creates it with the number `default` and this
    # `ttl`. Returns the new number, or nil if the key does not exist and `default` is nil.
    def incr(key, amount = 1, ttl = nil, default = nil)
      count(:incr, key, amount, ttl, default)
    end

    # Subtracts `amount` from a number, but not below 0. If the key does not exist, creates it with the number `default`
    # and this `ttl`. Returns the new number, or nil if the key does not exist and `default` is nil.
    def decr(key, amount = 1, ttl = nil, default = nil)
      count(:decr, key, amount, ttl, default)
    end

    # Sets the expiry of a key. Returns true, or nil if the key does not exist.
    def touch(key, ttl = nil)
      @connections.touch(@keys.sent(key), remaining(ttl)) || nil
    end

    # Sets the expiry of a key and returns its value, or nil if the key does not exist.
    def gat(key, ttl = nil)
      value, flags = @connections.gat(@keys.sent(key), remaining(ttl))
      @values.decode(value, flags) if value
    end

    # Calls the block with the value of a key, and replaces the value with the block's result. Returns true if the value
    # was replaced, false if another client changed the value concurrently, or nil if another client removed the key. If
    # the key does not exist, returns nil without calling the block.
    def cas(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      set_cas(key, yield(value), cas, ttl, options) unless cas.zero?
    end

    # Like cas, but if the key does not exist, calls the block with nil and stores its result with add.
    def cas!(key, ttl = nil, options = nil)
      value, cas = get_cas(key)
      changed = yield(value)
      cas.zero? ? add(key, changed, ttl, options) : set_cas(key, changed, cas, ttl, options)
    end

    # Returns the value of a key and its CAS, or [nil, 0] if the key does not exist. With a block, yields both and
    # returns the block's result.
    def get_cas(key)
      value, flags, cas = @connections.get(@keys.sent(key))
      value = @values.decode(value, flags) if value
      block_given? ? yield(value, cas || 0) : [value, cas || 0]
    end

    # Stores a value if the current value has this CAS. If `cas` is 0, stores it unconditionally. Returns true if the
    # value was stored, false if the current value has another CAS, or nil if the key does not exist.
    def set_cas(key, value, cas, ttl = nil, options = nil)
      return set(key, value, ttl, options) if cas.zero?

      store("set", key, value, ttl, options, cas)
    end

    # Like set_cas, except if `cas` is 0: stores the value only if the key exists, and otherwise returns false.
    def replace_cas(key, value, cas, ttl = nil, options = nil)
      cas.zero? ? replace(key, value, ttl, options) : set_cas(key, value, cas, ttl, options)
    end

    # Removes a key if its value has this CAS. If `cas` is 0, removes the key unconditionally. Returns whether the key
    # was removed.
    def delete_cas(key, cas = 0)
      cas.zero? ? @connections.delete(@keys.sent(key)) : @connections.delete_if(@keys.sent(key), cas)
    end

    # Runs the block. Unlike in dalli, the calls in the block wait for their replies.
    def multi
      yield
    end
    alias quiet multi

    # Yields the client itself. The client needs no connection pool around it, because threads can share the client.
    def with
      yield self
    end

    # Removes all items from every server. Returns an array with true for each server.
    def flush
      @connections.flush
      @each.map { true }
    end
    alias flush_all flush

    # Returns a hash with a page of statistics from each server. The types :items, :slabs and :settings select the pages
    # of these names, and any other type selects the general page. A page is nil if its server is unreachable or does
    # not reply.
    def stats(type = nil)
      type = nil unless %i[items slabs settings].include?(type)
      by_server { |server| server.stats(type.to_s) }
    end

    # Resets the statistics of each server. Returns an array with an element for each server: true, or nil if the server
    # is unreachable or does not reply.
    def reset_stats
      by_server { |server| server.stats("reset") }.values.map { |done| done && true }
    end

    # Returns a hash with the version of each server. A version is nil if its server is unreachable or does not reply.
    def version
      by_server(&:versions)
    end

    # Raises Larder::RingError if no server replies.
    def alive!
      raise RingError, "No server available" if version.values.none?

      self
    end

    # Closes idle connections at once, and each busy connection when its calls have ended. The next call opens a new
    # connection.
    def close
      [@connections, *@each.values].each(&:close)
    end
    alias reset close

    # Drops the connections in a forked child, because the parent still uses them.
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
      # Calls to a specific server use a Connections object that contains only this server. If the client has only one
      # server, these calls use @connections.
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
      # The name of a server cannot be resolved, so the client cannot use any server. All keys count as missing.
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
        # If another client creates the number at the same time, the loop repeats the increment or decrement.
        return default.to_i if @connections.store("add", key, default.to_i.to_s, ttl, 0, nil)
      end
    end

    # Converts a TTL, or a Unix time in the future, to seconds from now. 0 means no expiry. nil selects the client's
    # expires_in.
    def remaining(ttl)
      ttl = ttl.nil? ? @expires_in : seconds(ttl)
      return ttl if ttl <= TTL_MAX

      left = ttl - Time.now.to_i
      left.positive? ? left : ttl
    end

    # Converts a number to whole seconds. Rounds up, because half a second must not become 0, which means no expiry.
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
