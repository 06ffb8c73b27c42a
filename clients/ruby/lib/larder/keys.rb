# frozen_string_literal: true

require "digest/md5"

module Larder
  # Converts an application's keys to the keys in requests, like dalli: adds the namespace, and shortens keys of more
  # than 250 bytes to a prefix and a digest.
  class Keys
    MAX = 250
    DIGEST_MARK = ":md5:"

    def initialize(namespace, digest_class)
      raise ArgumentError, "digest_class needs a method hexdigest" unless digest_class.respond_to?(:hexdigest)

      namespace = namespace.call if namespace.is_a?(Proc)
      @prefix = "#{namespace}:" if namespace
      @digest_class = digest_class
    end

    def sent(key)
      key = key.to_s
      raise ArgumentError, "key cannot be blank" if key.empty?

      key = @prefix + key if @prefix
      key.bytesize > MAX ? shortened(key) : key
    end

    private

    # Like dalli, shortens a key to 249 bytes, or to 250 bytes with a namespace.
    def shortened(key)
      rest = DIGEST_MARK + @digest_class.hexdigest(key)
      max = @prefix ? MAX : MAX - 1
      key.byteslice(0, max - rest.bytesize).b + rest
    end
  end
  private_constant :Keys
end
