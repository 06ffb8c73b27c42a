# frozen_string_literal: true

# A client for memcached, Larder and other servers that speak memcached's protocol, with the methods and options of
# Dalli::Client.
#
#   cache = Larder::Client.new(["cache:11211"])
#   cache.set("user:1", { name: "Ann" }, 60)
#   cache.get("user:1") # => { name: "Ann" }
module Larder
end

require_relative "larder/version"
require_relative "larder/errors"
require_relative "larder/native"
require_relative "larder/fork"
require_relative "larder/servers"
require_relative "larder/keys"
require_relative "larder/values"
require_relative "larder/client"
