# frozen_string_literal: true

module Larder
  # Handles forks: a forked child drops its parent's sockets and opens its own.
  module Fork
    # The clients of this process. WeakMap drops a pair when the garbage collector frees its value, so each client is
    # both key and value. If the value were another object, the map could yield clients that are about to be freed.
    CLIENTS = ObjectSpace::WeakMap.new

    # Registers a new client.
    def self.watch(client)
      CLIENTS[client] = client
    end

    def self.forget_connections
      CLIENTS.each_value(&:after_fork)
    end

    # All ways to fork call Process._fork, except Process.daemon.
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
