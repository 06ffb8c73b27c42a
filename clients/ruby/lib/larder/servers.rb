# frozen_string_literal: true

module Larder
  # Server lists with dalli's syntax: HOST, HOST:PORT, HOST:PORT:WEIGHT, /PATH, /PATH:WEIGHT or memcached://HOST:PORT,
  # in an array or separated by commas. Default: MEMCACHE_SERVERS, or 127.0.0.1:11211.
  module Servers
    PORT = 11_211
    DEFAULT = "127.0.0.1:#{PORT}"
    URI_PREFIX = "memcached://"

    # Returns a pair of address and weight for each server.
    def self.parse(servers)
      servers = ENV.fetch("MEMCACHE_SERVERS", DEFAULT) if servers.nil?
      unless servers.is_a?(String) || (servers.is_a?(Array) && servers.all?(String))
        raise ArgumentError, "servers must be a string or an array of strings: #{servers.inspect}"
      end

      list = Array(servers).flat_map { |text| text.split(",") }.map(&:strip).reject(&:empty?)
      raise ArgumentError, "no servers" if list.empty?

      list.map { |text| server(text) }
    end

    # Returns the address and the weight of a server. Text with several colons but no brackets is an IPv6 address,
    # unless it is a name followed by two numbers.
    def self.server(text)
      text = text.delete_prefix(URI_PREFIX).delete_suffix("/") if text.start_with?(URI_PREFIX)
      raise ArgumentError, "use the options username and password for logins: #{text[/@.*/]}" if text.include?("@")

      weighted = text.start_with?("/") ? %r{\A(/.+):(\d+)\z} : /\A(\[[\h:]+\]:\d+|[^:\[\]]+:\d+):(\d+)\z/
      address, weight = text.match(weighted)&.captures || [text, 1]
      address += ":#{PORT}" unless address.start_with?("/") || address.match?(/:\d+\z/)
      [address, Integer(weight)]
    end
    private_class_method :server
  end
  private_constant :Servers
end
