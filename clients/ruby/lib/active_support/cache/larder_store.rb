# frozen_string_literal: true

require "larder"
require "active_support"
require "active_support/cache"
require "active_support/core_ext/array/extract_options"
require "active_support/core_ext/enumerable"

module ActiveSupport
  module Cache
    # A Rails cache store in memcached or Larder, with the keys and values of MemCacheStore: both stores read each
    # other's entries.
    #
    #   config.cache_store = :larder_store, "cache:11211", { expires_in: 1.day }
    #
    # Other options are those of Larder::Client. While the server is unreachable, reads are misses, writes return false,
    # and errors are logged.
    class LarderStore < Store
      # The client serializes entries.
      DEFAULT_CODER = NullCoder

      # Characters that are escaped in keys. The client could send most of them, but MemCacheStore escapes them.
      ESCAPED = /[\x00-\x20%\x7F-\xFF]/n
      KEY_MAX = 250
      # The length in bytes of the prefix of a longer key, before the digest.
      KEY_BEGIN = 213

      # How long an expired entry is kept for reads with race_condition_ttl, in seconds.
      RACE_TIME = 5 * 60

      # Makes raw values strings in the local cache, too.
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
      prepend RawInLocalCache

      def self.supports_cache_versioning?
        true
      end

      # Takes addresses and options, or a Larder::Client and options of the store.
      def initialize(*addresses)
        addresses = addresses.flatten
        options = addresses.extract_options!
        client_options = options.except(*UNIVERSAL_OPTIONS, :coder, :skip_nil)
        # Logs and notifications show the options of the store, so the client's options, such as a password, are left
        # out.
        super(options.except(*client_options.keys - [:raw]))
        @client = addresses.first if addresses.first.is_a?(Larder::Client)
        @client ||= Larder::Client.new(addresses.empty? ? nil : addresses, client_options)
      end

      # Adds to a number written with raw: true. Returns the new number; nil if it does not exist, or after an error.
      def increment(name, amount = 1, options = nil)
        options = merged_options(options)
        instrument(:increment, name, amount: amount) do
          without_errors(nil) { @client.incr(normalize_key(name, options), amount, options[:expires_in]) }
        end
      end

      # Subtracts from a number written with raw: true, but not below 0. Returns the new number; nil if it does not
      # exist, or after an error.
      def decrement(name, amount = 1, options = nil)
        options = merged_options(options)
        instrument(:decrement, name, amount: amount) do
          without_errors(nil) { @client.decr(normalize_key(name, options), amount, options[:expires_in]) }
        end
      end

      # Removes all items of the servers, including those of other applications.
      def clear(_options = nil)
        without_errors(nil) { @client.flush }
      end

      # Returns the statistics of each server.
      def stats
        @client.stats
      end

      private

      def read_entry(key, **_options)
        without_errors(nil) { deserialize_entry(@client.get(key)) }
      end

      def write_entry(key, entry, **options)
        value = options[:raw] ? entry.value.to_s : serialize_entry(entry)
        ttl = options[:expires_in]
        ttl += RACE_TIME if ttl && options[:race_condition_ttl] && !options[:raw]
        # Entries compress their values themselves.
        settings = { raw: options[:raw], compress: false }
        without_errors(false) do
          options[:unless_exist] ? @client.add(key, value, ttl, settings) : @client.set(key, value, ttl, settings)
        end
      end

      def read_multi_entries(names, **options)
        keys = names.index_by { |name| normalize_key(name, options) }
        found = without_errors({}) { @client.get_multi(keys.keys) }
        found.each_with_object({}) do |(key, value), values|
          name = keys[key]
          entry = deserialize_entry(value)
          next if entry.expired? || entry.mismatched?(normalize_version(name, options))

          values[name] = entry.value
        end
      end

      def delete_entry(key, **_options)
        without_errors(false) { @client.delete(key) || false }
      end

      def normalize_key(key, options)
        key = super&.b
        return key unless key

        key = key.gsub(ESCAPED) { |byte| format("%%%X", byte.ord) }
        key.bytesize > KEY_MAX ? "#{key[0, KEY_BEGIN]}:md5:#{ActiveSupport::Digest.hexdigest(key)}" : key
      end

      # Other programs may have stored values without an entry.
      def deserialize_entry(payload)
        entry = super
        entry.nil? || entry.is_a?(Entry) ? entry : Entry.new(entry, compress: false)
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
