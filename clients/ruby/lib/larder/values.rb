# frozen_string_literal: true

require "stringio"
require "zlib"

module Larder
  # Compresses values with zlib.
  class Compressor
    def self.compress(data)
      Zlib::Deflate.deflate(data)
    end

    def self.decompress(data)
      Zlib::Inflate.inflate(data)
    end
  end

  # Compresses values with gzip, which adds a checksum.
  class GzipCompressor
    def self.compress(data)
      Zlib.gzip(data)
    end

    def self.decompress(data)
      Zlib.gunzip(data)
    end
  end

  # Converts objects to stored values with flags, and back, in dalli's format.
  class Values
    SERIALIZED = 1
    COMPRESSED = 2

    def initialize(serializer:, compress:, compressor:, compression_min_size:, value_max_bytes:, raw:)
      @serializer = serializer
      @compress = compress
      @compressor = compressor
      @compression_min_size = compression_min_size
      @value_max_bytes = value_max_bytes
      @raw = raw
    end

    # Returns the stored value of an object, and its flags. Options of the call override the client's options.
    def encode(key, object, options)
      value, flags = option(options, :raw, @raw) ? [object.to_s, 0] : [serialize(object), SERIALIZED]
      if value.bytesize >= @compression_min_size && option(options, :compress, @compress)
        compressed = @compressor.compress(value)
        value, flags = compressed, flags | COMPRESSED if compressed.bytesize < value.bytesize
      end
      if value.bytesize > @value_max_bytes
        raise ValueOverMaxSize, "Value for #{key} over max size: #{@value_max_bytes} <= #{value.bytesize}"
      end

      [value, flags]
    end

    def decode(value, flags)
      value = @compressor.decompress(value) if flags.anybits?(COMPRESSED)
      flags.anybits?(SERIALIZED) ? @serializer.load(value) : value
    rescue TypeError, ArgumentError, NameError, Zlib::Error => e
      raise UnmarshalError, "Unable to unmarshal value: #{e.message}"
    end

    private

    def option(options, name, default)
      value = options && options[name]
      value.nil? ? default : value
    end

    def serialize(object)
      @serializer.dump(object)
    rescue Timeout::Error
      raise
    rescue StandardError => e
      raise MarshalError, e.message
    end
  end
  private_constant :Values
end
