# frozen_string_literal: true

require "larder"
require "active_support"
require "active_support/cache"
require "active_support/core_ext/array/extract_options"
require "active_support/core_ext/enumerable"
require "active_support/core_ext/object/blank"

module ActiveSupport
  module Cache
    # A cache store for Rails that uses memcached or Larder. Its keys and values have the format of MemCacheStore, so
    # both stores can read each other's entries.
    #
    #   config.cache_store = :larder_store, "cache:11211", { expires_in: 1.day }
    #
    # The store passes options that Rails does not define to Larder::Client. While the server is unreachable, reads are
    # misses, and failed writes return false (nil from Rails 8 on). The store logs the errors.
    class LarderStore < Store
      # With Rails 6.1, the client serializes entries instead of the store.
      DEFAULT_CODER = NullCoder if ActiveSupport::VERSION::MAJOR < 7

      # The characters that the store escapes in keys, like MemCacheStore. The client could send most of these
      # characters unescaped.
      ESCAPED = /[\x00-\x20%\x7F-\xFF]/n
      KEY_MAX = 250
      # The string before the digest in a shortened key.
      KEY_DIGEST = ActiveSupport::VERSION::MAJOR < 7 ? ":md5:" : ":hash:"
      # The length of the digest in bytes.
      DIGEST_LENGTH = 32

      # Whether an increment or decrement creates a missing number.
      COUNTS_FROM_NOTHING = ActiveSupport::VERSION::STRING.to_f >= 7.1
      # Whether notifications of increments and decrements contain the key with its namespace.
      SHOWS_KEYS = ActiveSupport::VERSION::STRING.to_f >= 7.2
      # The result of a failed write.
      WRITE_FAILED = ActiveSupport::VERSION::MAJOR >= 8 ? nil : false
      # The error that Rails raises for unreadable entries.
      UNREADABLE = Cache.const_defined?(:DeserializationError) ? DeserializationError : Class.new(StandardError)

      # How long an expired entry stays available for reads with race_condition_ttl, in seconds.
      RACE_TIME = 5 * 60

      # Also converts raw values to strings in the local cache of Rails 6.1.
      module RawInLocalCache # :nodoc:
        private

        def write_entry(key, entry, **options)
          return super unless options[:raw] && local_cache

          raw = Entry.new(entry.value.to_s)
          raw.expires_at = entry.expires_at
          super(key, raw, **options)
        end
      end

      prepend Strategy::LocalCache
      prepend RawInLocalCache if ActiveSupport::VERSION::MAJOR < 7

      def self.supports_cache_versioning?
        true
      end

      # Accepts either addresses and options of the client and the store, or a Larder::Client and options of the store.
      def initialize(*addresses)
        addresses = addresses.flatten
        options = addresses.extract_options!
        client_options = options.except(*UNIVERSAL_OPTIONS, :coder, :skip_nil)
        # Logs and notifications show the store's options, so the store must not keep the client's options, such as a
        # password.
        super(options.except(*client_options.keys - [:raw]))
        @client = addresses.first if addresses.first.is_a?(Larder::Client)
        @client ||= Larder::Client.new(addresses.empty? ? nil : addresses, client_options)
      end

      # Adds to a number written with raw: true. Returns the new number, or nil after an error. If the number does not
      # exist, creates it with the value `amount` (Rails 7.1 and later) or returns nil (earlier versions).
      def increment(name, amount = 1, options = nil)
        count(:increment, name, amount, options) do |key, expires_in|
          @client.incr(key, amount, expires_in, *([amount] if COUNTS_FROM_NOTHING))
        end
      end

      # Subtracts from a number written with raw: true, but not below 0. Returns the new number, or nil after an error.
      # If the number does not exist, creates it with the value 0 (Rails 7.1 and later) or returns nil (earlier
      # versions).
      def decrement(name, amount = 1, options = nil)
        count(:decrement, name, amount, options) do |key, expires_in|
          @client.decr(key, amount, expires_in, *([0] if COUNTS_FROM_NOTHING))
        end
      end

      # Removes all items from the servers, including items of other applications.
      def clear(_options = nil)
        without_errors(nil) { @client.flush }
      end

      # Returns the statistics of each server.
      def stats
        @client.stats
      end

      private

      # Rails 7.0 calls this method. With the cache format 6.1, the client serializes entries.
      def default_coder
        Cache.format_version == 6.1 ? NullCoder : super
      end

      # Rails 7.1 and later call this method. With the cache format 6.1, the client serializes entries.
      def default_serializer
        # Calls the superclass's method even if its result is not used, because the method warns about old formats.
        serializer = super
        Cache.format_version == 6.1 ? SerializerWithFallback[:passthrough] : serializer
      end

      def count(kind, name, amount, options)
        options = merged_options(options)
        key = normalize_key(name, options)
        instrument(kind, SHOWS_KEYS ? key : name, amount: amount) do
          without_errors(nil) { yield key, options[:expires_in] }
        end
      end

      def read_entry(key, **options)
        deserialize_entry(read_serialized_entry(key, **options), **options)
      end

      # Rails 7.0 and later call this method, and keep the serialized entries in the local cache.
      def read_serialized_entry(key, **_options)
        without_errors(nil) { @client.get(key) }
      end

      def write_entry(key, entry, **options)
        write_serialized_entry(key, serialize_entry(entry, **options), **options)
      end

      def write_serialized_entry(key, payload, raw: false, expires_in: nil, race_condition_ttl: nil, unless_exist: false,
                                 **)
        ttl = expires_in
        ttl += RACE_TIME if ttl && race_condition_ttl && !raw
        # The client need not compress entries, because an entry compresses its own value.
        settings = { raw: raw, compress: false }
        without_errors(WRITE_FAILED) do
          unless_exist ? @client.add(key, payload, ttl, settings) : @client.set(key, payload, ttl, settings)
        end
      end

      def read_multi_entries(names, **options)
        keys = names.index_by { |name| normalize_key(name, options) }
        found = without_errors({}) { @client.get_multi(keys.keys) }
        found.each_with_object({}) do |(key, value), values|
          name = keys[key]
          entry = deserialize_entry(value, **options)
          next if entry.nil? || entry.expired? || entry.mismatched?(normalize_version(name, options))

          values[name] = entry.value
        rescue UNREADABLE
          # Skips a value that cannot be read, for example because another version of the application serialized it.
        end
      end

      def delete_entry(key, **_options)
        without_errors(false) { @client.delete(key) || false }
      end

      def serialize_entry(entry, raw: false, **options)
        return entry.value.to_s if raw

        ActiveSupport::VERSION::MAJOR < 7 ? super(entry) : copied(super(entry, raw: raw, **options))
      end

      # Other programs may have stored plain values instead of entries.
      def deserialize_entry(payload, raw: false, **)
        return copied(payload) if payload.nil? || payload.is_a?(Entry)
        return Entry.new(payload, compress: false) if raw || !payload.is_a?(String) || ActiveSupport::VERSION::MAJOR < 7

        entry = super(payload)
        # With Rails 7.0, the superclass's method returns a string if the entry is not in the current format.
        entry.is_a?(String) ? Coders::Loader.load(entry) : entry
      end

      # Returns a copy of an entry in the format 6.1, because the application could otherwise change the entry in the
      # local cache. Rails 6.1 needs no copy here, because its local cache copies entries.
      def copied(payload)
        return payload if !payload.is_a?(Entry) || ActiveSupport::VERSION::MAJOR < 7 || Cache.format_version != 6.1

        payload.dup.tap(&:dup_value!)
      end

      def normalize_key(key, options)
        key = (shortens_keys? ? expand_and_namespace_key(key, options) : super)&.b
        return key unless key

        key = key.gsub(ESCAPED) { |byte| format("%%%X", byte.ord) }
        return truncate_key(key) if shortens_keys?
        return key if key.bytesize <= KEY_MAX

        "#{key[0, KEY_MAX - KEY_DIGEST.bytesize - DIGEST_LENGTH]}#{KEY_DIGEST}#{ActiveSupport::Digest.hexdigest(key)}"
      end

      # Returns whether the superclass shortens long keys (Rails 8.1 and later).
      def shortens_keys?
        Store.private_method_defined?(:truncate_key)
      end

      def without_errors(otherwise)
        yield
      rescue Larder::Error => e
        logger&.error("#{e.class}: #{e.message}")
        otherwise
      end
    end
  end
end
