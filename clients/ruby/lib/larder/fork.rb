# frozen_string_literal: true

module Larder
  # The child of a fork has copies of its parent's sockets: it closes them and opens its own.
  module Fork
    # Each client is its own value: WeakMap tells by the value whether a pair is still there, and would yield keys that
    # the garbage collector is about to free.
    CLIENTS = ObjectSpace::WeakMap.new

    # Is called with each client that is made.
    def self.watch(client)
      CLIENTS[client] = client
    end

    def self.forget_connections
      CLIENTS.each_value(&:after_fork)
    end

    # Process._fork makes all forks but that of Process.daemon.
    module Hook
      def _fork
        pid = super
        Fork.forget_connections if pid.zero?
        pid
      end

      def daemon(...)
        super.tap { Fork.forget_connections }
      end
    end

    Process.singleton_class.prepend(Hook)
  end
  private_constant :Fork
end
