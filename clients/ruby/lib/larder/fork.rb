# frozen_string_literal: true

module Larder
  # Handling of forks: a forked child drops the sockets of its parent and opens its own.
  module Fork
    # Maps each client to itself. WeakMap drops a pair when the garbage collector frees its value. With any other value,
    # it could yield keys that the garbage collector is about to free.
    CLIENTS = ObjectSpace::WeakMap.new

    # Registers a new client.
    def self.watch(client)
      CLIENTS[client] = client
    end

    def self.forget_connections
      CLIENTS.each_value(&:after_fork)
    end

    # All forks call Process._fork, except Process.daemon.
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
